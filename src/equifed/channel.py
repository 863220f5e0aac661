"""The channel: everything between a client's reply and the server's step, the same in every engine.

A reply goes through it where it is made, before anything leaves the client (`Channel.through`), and the replies that
arrive are gathered by it (`Channel.gather`). Both are pure functions of tensors that can be vmapped. An empty channel
hands out the method's own phases and adds replies up: it costs nothing and changes no bit.

Clipping: a phase declares which fields of its reply move the model (`Phase.updates`). With C the largest norm,

    u <- u min(1, C / ||u||_2),   u = field / weight,  or  field - what came down

for each such field of each client, over all its entries together (also where it holds several models). What the server
does with clipped updates is a mean weighted by the same weights, so no client can move it by more than C.

`max_update` is the norm of an update that is refused instead, with the whole reply: see `equifed.bounds`.

Robust rules (`equifed.robust`) look at the updates of all clients before they are gathered (`Channel.resist`). Where
replies are summed, every update becomes their robust mean; where they are stacked, each is let through as far as the
rule trusts it. Of a client whose update is not taken at all nothing else is either, as if it had not answered.
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
from equifed.protocol import YES_OR_NO, Method, Phase, Record, Update, wrapped
from equifed.robust import RuleName, aggregate, capped_weights, fewest, liars_among, like
from equifed.tree import Tree

CLIPPED = "clipped"
"""The field that a clipped reply has besides its own: 1 where an update was longer than C, else 0."""


class Gathered(NamedTuple):
    """The replies of an exchange as the server's step gets them, and what the channel saw."""

    replies: Record
    """Summed or stacked, with `present` (and `client`): see `ServerStep`."""
    clipped: Tensor | None
    """How many of them were clipped; None where nothing is."""


class Resisted(NamedTuple):
    """The replies of one exchange after a robust rule."""

    replies: Record
    present: Tensor
    """Whose reply counts [K]."""
    cut: Tensor
    """How much of each client's update was cut, from 0 to 1 [K]."""
    counted: Tensor
    """Whose update the rule looked at [K], boolean."""
    enough: Tensor
    """Whether they are as many as the rule needs."""


@dataclass(frozen=True)
class Channel:
    """The settings of the channel; its numbers can be swept like hyper-parameters."""

    clip: float | Tensor | None = None
    """The largest L2 norm that an update of a client may have; longer ones are scaled down to it. None: any."""
    max_update: float | Tensor = 1e6
    """The L2 norm that an update of an honest client never has: a reply with a longer one is refused."""
    secure: bool = False
    """Sums are made of integers (`equifed.fixed_point`), as they come out of masked replies."""
    robust: RuleName | None = None
    """What takes the place of the mean of updates. None: nothing."""
    liars: float | Tensor = 0.2
    """The share of a round's clients that may lie, which a robust rule withstands."""

    def hides(self, phase: Phase) -> bool:
        """Whether nobody sees a single reply of this phase."""
        return self.secure and phase.gather == "sum" and bool(phase.up)

    def check(self, method: Method) -> None:
        """Raise a ConfigError for what cannot be done to this method's replies."""
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
                + f" Leave {key} out, or take a method whose phases declare updates, such as fedavg.",
                key=key,
            )
        for phase in phases:
            for field, update in phase.updates.items():
                if self.robust is not None and update.among is not None:
                    raise ConfigError(
                        f"compares the model updates of all clients, but those of {method.name} train different models "
                        f"({update.among}), and a few liars could be most of those who train one. Leave robust out.",
                        key="robust",
                    )
                missing = {field, update.weight or field} - {*phase.up} or {update.around or None} - {None, *phase.down}
                if missing:
                    raise ConfigError(
                        f"{method.name}, phase {phase.name!r}: the update {field!r} is declared with "
                        f"{', '.join(map(repr, missing))}, which the phase does not send. Correct its `updates`."
                    )

    def check_cohort(self, asked: int) -> None:
        """Raise a ConfigError where the robust rule can do nothing for so many clients in a round."""
        if self.robust is None:
            return
        f = int(liars_among(self.liars, asked))
        needed = int(fewest(self.robust, torch.tensor(f)))
        if needed > asked:
            raise ConfigError(
                f"{float(self.liars):g} of {asked} clients in a round are f = {f} liars; {self.robust} needs 2 f + 3, "
                f"{needed} clients, to withstand them. Take more clients in a round, fewer liars or another rule.",
                key="liars",
            )
        if not f and float(self.liars) > 0:
            raise ConfigError(
                f"{float(self.liars):g} of {asked} clients in a round is less than one client: {self.robust} would "
                f"withstand nobody. Give at least {1 / asked:.3g}, more clients in a round, or 0 to cut nothing.",
                key="liars",
            )

    def through(self, phase: Phase) -> Phase:
        """The phase whose replies have gone through the channel."""
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
            client=wrapped(phase.client, lambda down, state, reply, new: (send(down, reply), new)),
            bounds={**phase.bounds, CLIPPED: YES_OR_NO},
        )

    def resists(self, phase: Phase) -> bool:
        """Whether a robust rule looks at the replies of this phase."""
        return self.robust is not None and bool(phase.updates)

    def resist(self, phase: Phase, down: Record, replies: Record, present: Tensor, asked: int) -> Resisted:
        """What a robust rule leaves of the replies [K, ...] of one exchange, for which so many clients were asked;
        zeros where `present` [K] is 0."""
        assert self.robust is not None
        here, weights = present > 0, {}
        for field, update in phase.updates.items():
            weights[field] = torch.ones_like(present) if update.weight is None else replies[update.weight]
            here = here & (weights[field] > 0)  # without a weight there is no update
        updates = {
            field: tree.map(
                lambda leaf, weight=weights[field]: torch.where(
                    like(here, leaf), leaf / like(weight, leaf).clamp_min(1e-30), 0.0
                ),
                update_of(update, down, replies[field]),
            )
            for field, update in phase.updates.items()
        }
        f = liars_among(self.liars, asked).to(present.device)
        found = aggregate(self.robust, updates, weights, here, f)
        made: Record = dict(replies)
        for field, update in phase.updates.items():
            weight = weights[field]
            if phase.gather == "sum":
                single = tree.map(lambda leaf: leaf.expand(len(here), *leaf.shape), found.centre[field])
            else:  # each is weighted by the server, which sees the weights too
                single, weight = found.single[field], capped_weights(weight, here)
                made |= {} if update.weight is None else {update.weight: weight}
            value = tree.map(lambda leaf, weight=weight: leaf * like(weight, leaf), single)
            made[field] = value if update.around is None else tree.add(down[update.around], value)
        present = torch.where(found.dropped, 0.0, present)
        counts = {CLIPPED: replies[CLIPPED]} if CLIPPED in replies else {}  # also of those who are not taken
        made = tree.where(present > 0, made, tree.zeros_like(made)) | counts
        return Resisted(made, present, found.cut, here, here.sum() >= fewest(self.robust, f))

    def gather(self, phase: Phase, replies: Record, present: Tensor, clients: Tensor) -> Gathered:
        """The server's view of `replies` [..., K, ...], all zeros where `present` [..., K] is 0."""
        axis = present.dim() - 1
        if phase.gather == "sum":
            sums = {field: tree.map(partial(self._sum, phase, field, axis), value) for field, value in replies.items()}
            return self.of_sums(sums, present.sum(axis))
        sent = {field: value for field, value in replies.items() if field != CLIPPED}
        clipped = replies[CLIPPED].sum(axis) if CLIPPED in replies else None
        return Gathered({**sent, "present": present, "client": clients}, clipped)

    @staticmethod
    def of_sums(sums: Record, present: Tensor) -> Gathered:
        """The server's view of replies that it has no more of than the sum over so many clients."""
        summed = {field: value for field, value in sums.items() if field != CLIPPED}
        return Gathered({**summed, "present": present}, sums.get(CLIPPED))

    def _sum(self, phase: Phase, field: str, axis: int, values: Tensor) -> Tensor:
        if not self.hides(phase):
            return values.sum(axis)
        return fixed_point.summed(values, axis, phase.places.get(field, fixed_point.PLACES))

    def _clip(self, update: Update, down: Record, reply: Record, field: str) -> tuple[Tree, Tensor]:
        """The field with its update clipped, and whether it had to be. One that is short enough keeps its bits."""
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
"""What can be swept besides a method's hyper-parameters."""


def update_of(update: Update, down: Record, value: Tree) -> Tree:
    """The update in a field, times its weight."""
    return value if update.around is None else tree.sub(value, down[update.around])


def _norm(value: Tree) -> Tensor:
    """||value||_2 over all leaves, in 64 bits: no square of a 32-bit number overflows there."""
    return torch.stack([leaf.double().square().sum() for leaf in tree.leaves(value)]).sum().sqrt()
