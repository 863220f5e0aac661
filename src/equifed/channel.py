"""The channel: everything between a client's reply and the server's step, the same in every engine.

A client's reply passes through the channel before it leaves the client (`Channel.apply`), and the channel gathers the
replies at the server (`Channel.gather`). Both are pure functions of tensors that can be vmapped. An empty channel
returns the method's own phases and sums replies: it costs nothing and changes no bit.

Clipping: a phase declares which fields of its reply move the model (`Phase.updates`). With C the largest norm,

    u <- u min(1, C / ||u||_2),   u = field / weight,  or  field - field of `down`

for each such field of each client, over all its entries together (also where it holds several models). The server
averages clipped updates with the same weights, so no client can move the model by more than C.

A reply with an update longer than `max_update` is refused as a whole: see `equifed.bounds`.

Robust rules (`equifed.robust`) are applied to the updates of all clients before the replies are gathered
(`Channel.apply_rule`). If replies are summed, every update is replaced by the robust mean; if they are stacked, each is
cut as far as the rule requires. A client with a rejected update counts as one that did not reply.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from equifed import fixed_point, tree
from equifed.errors import ConfigError
from equifed.protocol import YES_OR_NO, Method, Phase, Record, Update, wrap_work
from equifed.robust import RuleName, aggregate, capped_weights, count_malicious, expand_to, min_updates
from equifed.tree import Tree

CLIPPED = "clipped"
"""Field that clipping adds to a reply: 1 if an update was longer than C, else 0."""


class Gathered(NamedTuple):
    """The replies of an exchange as the server's step gets them, and the number of clipped ones."""

    replies: Record
    """Summed or stacked replies, with `present` (and `client`): see `ServerStep`."""
    clipped: Tensor | None
    """Number of clipped replies; None without clipping."""


class RobustReplies(NamedTuple):
    """The replies of one exchange after a robust rule."""

    replies: Record
    present: Tensor
    """1.0 for each client with a reply that counts, else 0.0 [K]."""
    cut: Tensor
    """Share of each client's update that was cut, from 0 to 1 [K]."""
    counted: Tensor
    """True for each client with an update that the rule was applied to [K]."""
    enough: Tensor
    """True if there are as many updates as the rule needs."""


@dataclass(frozen=True)
class Channel:
    """The settings of the channel; its numbers can be swept like hyperparameters."""

    clip: float | Tensor | None = None
    """Largest L2 norm of a client's update; longer updates are scaled down to it. None: no clipping."""
    max_update: float | Tensor = 1e6
    """L2 norm above which an update, with its reply, is refused."""
    secure: bool = False
    """True if sums are computed with integers (`equifed.fixed_point`), as with masked replies."""
    robust: RuleName | None = None
    """Robust rule used instead of the weighted mean. None: the weighted mean."""
    liars: float | Tensor = 0.2
    """Share of a round's clients that may be malicious and that the robust rule tolerates."""

    def is_hidden(self, phase: Phase) -> bool:
        """Return True if the single replies of this phase are hidden from the server."""
        return self.secure and phase.gather == "sum" and bool(phase.up)

    def check(self, method: Method) -> None:
        """Raise a ConfigError if the channel cannot be used with this method's replies."""
        if self.clip is None and self.robust is None:
            return
        key = "robust" if self.clip is None else "clip"
        does = "compares" if self.clip is None else "bounds the norm of"
        phases = [phase for stage in (method.setup, method.round, method.final) for phase in stage]
        if not any(phase.updates for phase in phases):
            sent = sorted({field for phase in phases for field in phase.up})
            raise ConfigError(
                f"{does} the model updates that clients send, but {method.name} sends none: "
                + (f"its clients send {', '.join(sent)}." if sent else "nothing leaves its clients.")
                + f" Leave {key} out, or use a method that declares updates in its phases, such as fedavg.",
                key=key,
            )
        for phase in phases:
            for field, update in phase.updates.items():
                if self.robust is not None and update.among is not None:
                    raise ConfigError(
                        f"compares the model updates of all clients, but those of {method.name} train different models "
                        f"({update.among}), and a few malicious clients could be the majority for one model. Leave "
                        "robust out.",
                        key="robust",
                    )
                missing = {field, update.weight or field} - {*phase.up} or {update.around or None} - {None, *phase.down}
                if missing:
                    raise ConfigError(
                        f"{method.name}, phase {phase.name!r}: the update {field!r} is declared with "
                        f"{', '.join(map(repr, missing))}, which the phase does not send. Correct its `updates`."
                    )

    def check_cohort(self, asked: int) -> None:
        """Raise a ConfigError if the robust rule cannot be used with `asked` clients in a round."""
        if self.robust is None:
            return
        f = int(count_malicious(self.liars, asked))
        needed = int(min_updates(self.robust, torch.tensor(f)))
        if needed > asked:
            raise ConfigError(
                f"{float(self.liars):g} of {asked} clients in a round are f = {f} malicious clients; {self.robust} "
                f"needs 2 f + 3 = {needed} clients to tolerate them. Use more clients in a round, a smaller share or "
                "another rule.",
                key="liars",
            )
        if not f and float(self.liars) > 0:
            raise ConfigError(
                f"{float(self.liars):g} of {asked} clients in a round is less than one client: {self.robust} would not "
                f"tolerate any. Give at least {1 / asked:.3g}, more clients in a round, or 0 to cut nothing.",
                key="liars",
            )

    def apply(self, phase: Phase) -> Phase:
        """Return the phase with its clients' replies passed through the channel."""
        if self.clip is None or not phase.updates:
            return phase

        def send(down: Record, reply: Record) -> Record:
            cut = torch.zeros((), dtype=torch.bool, device=tree.leaves(reply)[0].device)
            for field, update in phase.updates.items():
                clipped, long = self._clip(update, down, reply, field)
                reply, cut = {**reply, field: clipped}, cut | long
            return {**reply, CLIPPED: cut.to(torch.float32)}

        return dataclasses.replace(
            phase,
            up=(*phase.up, CLIPPED),
            client=wrap_work(phase.client, lambda down, state, reply, new: (send(down, reply), new)),
            bounds={**phase.bounds, CLIPPED: YES_OR_NO},
        )

    def has_rule(self, phase: Phase) -> bool:
        """Return True if a robust rule is applied to the replies of this phase."""
        return self.robust is not None and bool(phase.updates)

    def apply_rule(self, phase: Phase, down: Record, replies: Record, present: Tensor, asked: int) -> RobustReplies:
        """Apply the robust rule to the replies [K, ...] of one exchange, zeros where `present` [K] is 0. `asked`:
        number of clients that were asked."""
        assert self.robust is not None
        here, weights = present > 0, {}
        for field, update in phase.updates.items():
            weights[field] = torch.ones_like(present) if update.weight is None else replies[update.weight]
            here = here & (weights[field] > 0)  # without a weight there is no update
        updates = {
            field: tree.map(
                lambda leaf, weight=weights[field]: torch.where(
                    expand_to(here, leaf), leaf / expand_to(weight, leaf).clamp_min(1e-30), 0.0
                ),
                update_of(update, down, replies[field]),
            )
            for field, update in phase.updates.items()
        }
        f = count_malicious(self.liars, asked).to(present.device)
        found = aggregate(self.robust, updates, weights, here, f)
        made: Record = dict(replies)
        for field, update in phase.updates.items():
            weight = weights[field]
            if phase.gather == "sum":
                single = tree.map(lambda leaf: leaf.expand(len(here), *leaf.shape), found.centre[field])
            else:  # the server sees the weights and multiplies by them itself
                single, weight = found.single[field], capped_weights(weight, here)
                made |= {} if update.weight is None else {update.weight: weight}
            value = tree.map(lambda leaf, weight=weight: leaf * expand_to(weight, leaf), single)
            made[field] = value if update.around is None else tree.add(down[update.around], value)
        present = torch.where(found.dropped, 0.0, present)
        counts = {CLIPPED: replies[CLIPPED]} if CLIPPED in replies else {}  # also of rejected updates
        made = tree.where(present > 0, made, tree.zeros_like(made)) | counts
        return RobustReplies(made, present, found.cut, here, here.sum() >= min_updates(self.robust, f))

    def gather(self, phase: Phase, replies: Record, present: Tensor, clients: Tensor) -> Gathered:
        """Return the server's view of `replies` [..., K, ...], all zeros where `present` [..., K] is 0."""
        axis = present.dim() - 1
        if phase.gather == "sum":
            sums = {field: tree.map(partial(self._sum, phase, field, axis), value) for field, value in replies.items()}
            return self.gather_sums(sums, present.sum(axis))
        sent = {field: value for field, value in replies.items() if field != CLIPPED}
        clipped = replies[CLIPPED].sum(axis) if CLIPPED in replies else None
        return Gathered({**sent, "present": present, "client": clients}, clipped)

    @staticmethod
    def gather_sums(sums: Record, present: Tensor) -> Gathered:
        """Return the server's view of replies of which it has only the sums, over `present` clients."""
        summed = {field: value for field, value in sums.items() if field != CLIPPED}
        return Gathered({**summed, "present": present}, sums.get(CLIPPED))

    def _sum(self, phase: Phase, field: str, axis: int, values: Tensor) -> Tensor:
        if not self.is_hidden(phase):
            return values.sum(axis)
        return fixed_point.sum_exactly(values, axis, phase.places.get(field, fixed_point.PLACES))

    def _clip(self, update: Update, down: Record, reply: Record, field: str) -> tuple[Tree, Tensor]:
        """Return the field with its update clipped, and True if it was too long. A short one keeps its bits."""
        assert self.clip is not None
        difference = update_of(update, down, reply[field])
        limit = self.clip if update.weight is None else self.clip * reply[update.weight].double()
        norm = _norm(difference)
        long = norm > limit
        short = tree.map(lambda leaf: leaf * (limit / norm).to(leaf.dtype), difference)
        if update.around is not None:
            short = tree.add(down[update.around], short)
        return tree.map(lambda new, old: torch.where(long, new, old), short, reply[field]), long


CHANNEL_OPTIONS = ("clip", "max_update", "liars")
"""Settings of the channel that can be swept, like a method's hyperparameters."""


def update_of(update: Update, down: Record, value: Tree) -> Tree:
    """Return the update in a field, times its weight."""
    return value if update.around is None else tree.sub(value, down[update.around])


def _norm(value: Tree) -> Tensor:
    """Return ||value||_2 over all leaves, in 64 bits, so that squares of 32-bit numbers do not overflow."""
    return torch.stack([leaf.double().square().sum() for leaf in tree.leaves(value)]).sum().sqrt()
