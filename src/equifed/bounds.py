"""Bounds: what the reply of an honest client can be at all, and what is said of one that is not.

A reply whose numbers are finite can still be impossible: more rows than the client has, a sum over 37 rows that is
longer than 37 rows can make it, an update of norm 1e30. Every field of every reply has a bound (`protocol.Bound`, or
the norm of an update). The same checks are made of single replies, by the server of a real federation and by a silo
before it sends, and of all lanes of the simulator at once. Whoever is out of bounds is refused, and the round goes on.

An update u (see `equifed.channel`), and the mean over rows u of a sum that is to be `alike`, has

    ||u|| <= max_update, or the norm that updates are clipped to;  per_row for the sum
    ||u|| <= max(1, 100 median of ||u|| over the replies to the exchange),  where at least three are not 0; `alike`
             is in place of the 1 in other fields, such as sums of losses

Of replies that nobody sees singly (`secure`) there is no median; every number must be one that their sum holds.

A bound is about real numbers, and replies are computed in floating point. Each operation in 32 bits rounds by a share
of at most 2^-24, so that a number which went through d of them, one after the other, may lie beyond its bound L by

    L d 2^-24,    d = min(2^10 + rows added up, 2^14)

2^10 is more than functions and layers take, and states that are kept over the rounds. Rows are added in blocks, vector
lanes or trees, never one by one: d stays below 2^14 (a share of 0.001) for any number of rows; see `over_rows`. Whole
numbers are exact up to 2^24. Sums of integers (`secure`) are off by half of the last binary place for each client.

Norms are computed where the tensors are; all else is NumPy, which is quicker than torch with few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import fixed_point, tree
from equifed.channel import Channel, update_of
from equifed.protocol import BOUNDS, COUNT, ROWS, Bound, OfRows, Phase, Record, Task, Update
from equifed.tree import Tree

TIMES, SHORT, ENOUGH = 100.0, 1.0, 3
"""How many times the median of all replies a norm may be; the norm of an update that is not too long beside any others;
how many replies it takes to tell."""
UNIT = 2.0**-24
"""The share of a number by which one operation in 32 bits rounds."""
ROUNDINGS, IN_A_ROW = 2**10, 2**14
"""Operations that a number went through before it is added up; all of them, however many are added."""
EXACT, OF_WHOLE = 2.0**24, 16
"""Whole numbers are exact up to the first; the roundings that a sum of larger ones goes through."""
NOT_FINITE = "NaN or Inf in its reply"


def room(added: Any = 0) -> Any:
    """How far rounding may take a number beyond a bound, as a share of it; added: how many numbers it is the sum of."""
    return UNIT * np.minimum(ROUNDINGS + added, IN_A_ROW)


def room_of_whole(limit: Any) -> Any:
    """The same of whole numbers, and not as a share."""
    return np.where(limit < EXACT, 0.0, UNIT * OF_WHOLE * limit)


class Check(NamedTuple):
    """One thing that is looked at in replies [...]: they are possible where found <= most + slack."""

    field: str
    found: np.ndarray
    """[...]"""
    most: np.ndarray | float
    """[...], or one for all."""
    slack: np.ndarray | float
    words: Callable[[float, float], str]
    """What is wrong, from what was found and what may be, as it may follow "its reply"."""
    alike: np.ndarray | float | None = None
    """What was found is compared with other replies, where it is above this,"""
    alike_slack: np.ndarray | float = 0.0
    """and by more than rounding."""

    @property
    def fine(self) -> np.ndarray:
        limit = self.most + self.slack
        fine: np.ndarray = self.found < np.inf if isinstance(limit, float) and limit == np.inf else self.found <= limit
        return fine

    @property
    def long(self) -> np.ndarray:
        """Whether it has to be compared with other replies."""
        assert self.alike is not None
        long: np.ndarray = self.found > self.alike + self.alike_slack
        return long


@dataclass(frozen=True)
class _Limits:
    """The bound of a field in numbers: one for all runs, or of every run [R]."""

    low: Any
    high: Any
    per_row: Any
    norm: Any
    alike: Any
    bound: Bound
    """That of the first run: all have the same parts."""
    update: Update | None
    clipped: bool

    def of(self, runs: np.ndarray, rows: np.ndarray) -> tuple[Any, ...]:
        """low, high, per_row, norm and alike of these runs, of clients with so many rows."""
        low, high, per_row, norm, alike = (part[runs] if isinstance(part, np.ndarray) else part for part in self._parts)
        return low, high, per_row(rows) if callable(per_row) else per_row, norm, alike

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        return tuple(getattr(self, part) for part in _PARTS)


class Bounds:
    """The bounds of all fields of a phase's reply.

    phases: the phase with every run's hyper-parameters, and the channel; for all runs together the first alone.
    clients: how many are asked, which a secure sum must have room for.
    """

    def __init__(self, phases: Sequence[tuple[Phase, Channel]], task: Task, clients: int) -> None:
        def numbers(limits: list[Any]) -> Any:
            if isinstance(limits[0], OfRows):
                return partial(limits[0].most, task)
            values = [float(limit(task) if callable(limit) else limit) for limit in limits if limit is not None]
            if len({*values}) > 1:
                return np.minimum(values, np.finfo(np.float64).max)  # Inf is too large for every run
            return values[0] if values else None

        first, channel = phases[0]
        self._hidden, self._clients = channel.hides(first), clients
        self._places = {name: first.places.get(name, fixed_point.PLACES) for name in first.up}
        self._fields: dict[str, _Limits] = {}
        # updates last: a weight that is wrong itself makes the update wrong that it belongs to
        for name in sorted(first.up, key=lambda name: name in first.updates):
            if name in first.codecs:
                continue
            bounds = [bound_of(phase, channel, name) for phase, channel in phases]
            parts = {part: numbers([getattr(bound, part) for bound in bounds]) for part in _PARTS}
            self._fields[name] = _Limits(
                **parts, bound=bounds[0], update=first.updates.get(name), clipped=channel.clip is not None
            )

    def problem(self, down: Record, reply: Record, rows: int, run: int = 0) -> str:
        """What is impossible in the reply of a client with so many rows; empty where nothing is."""
        for check in self.checks(down, reply, np.array(rows), np.array(run)):
            if not check.fine:
                found, most = float(check.found), float(check.most)
                return check.words(found, most) if np.isfinite(found) else f"has NaN or Inf in {check.field}"
        return ""

    def impossible(self, down: Record, total: Record, clients: int, rows: int) -> str:
        """The field that is impossible in the sum of the replies of so many clients, who together have so many rows at
        most; empty where none is. Nobody can tell which of them it is due to."""
        down = tree.map(lambda leaf: leaf * clients, down)
        for check in self.checks(down, total, np.array(rows), np.array(0), clients):
            if not check.fine:
                return check.field
        return ""

    def refused(
        self, down: Record, replies: Mapping[int, Record], rows: Mapping[int, int], run: int = 0
    ) -> dict[int, str]:
        """Of the replies to an exchange, those that are impossible or far longer than the others, and why."""
        found = {client: self.problem(down, reply, rows[client], run) for client, reply in replies.items()}
        found = {client: wrong for client, wrong in found.items() if wrong}
        compared: dict[str, dict[int, Check]] = {}
        for client in replies.keys() - found.keys():
            for check in self.checks(down, replies[client], np.array(rows[client]), np.array(run)):
                if check.alike is not None and not self._hidden:
                    compared.setdefault(check.field, {})[client] = check
        for field, checks in compared.items():
            beside = most_beside(np.array([[float(check.found) for check in checks.values()]]))[0]
            for client, check in checks.items():
                if check.long and check.found > beside:
                    found[client] = too_long(field, float(check.found), max(float(check.alike), beside))  # type: ignore[arg-type]
        return found

    def refused_of_many(self, replies: Replies, here: np.ndarray) -> dict[tuple[int, ...], str]:
        """The same of the replies of many runs that are `here` [...], by their place. All are looked at together; one
        that seems impossible is looked at again by itself, which decides."""
        down, reply, kept, runs, slots, rows = replies
        checks = list(self.checks(down, reply, rows, runs))
        parts = [check.fine for check in checks]
        parts += [_norm([leaf], runs.ndim) < np.inf for leaf in tree.leaves(kept) if leaf.is_floating_point()]
        compared = [] if self._hidden else [check for check in checks if check.alike is not None]
        long = [check for check in compared if check.long.any()]
        found: dict[tuple[int, ...], str] = {}
        if not long and all(part.all() for part in parts):
            return found
        fine = np.logical_and.reduce(parts)
        for place in zip(*np.nonzero(here & ~fine), strict=True):
            sent, said, own = tree.map(lambda leaf, place=place: leaf[place], (down, reply, kept))
            whole = finite((said, own))
            wrong = self.problem(sent, said, int(rows[place]), int(runs[place])) if whole else NOT_FINITE
            if wrong:
                found[place] = wrong
        here = here.copy()
        for place in found:
            here[place] = False
        for check in long:
            sizes = np.full((runs.max() + 1, slots.max() + 1), np.nan)
            sizes[runs[here], slots[here]] = check.found[here]
            beside = most_beside(sizes)[runs]
            for place in zip(*np.nonzero(here & check.long & (check.found > beside)), strict=True):
                sent, said = tree.map(lambda leaf, place=place: leaf[place], (down, reply))
                alone = self._alike(check.field, sent, said, rows[place], runs[place])
                if alone.long and alone.found > beside[place]:
                    found[place] = too_long(check.field, float(alone.found), np.fmax(alone.alike, beside[place]))  # type: ignore[arg-type]
        return found

    def _alike(self, field: str, down: Record, reply: Record, rows: np.ndarray, run: np.ndarray) -> Check:
        """What is compared of a field of one reply, in 64 bits."""
        checks = self.checks(down, reply, np.array(rows), np.array(run))
        return next(check for check in checks if check.field == field and check.alike is not None)

    def checks(
        self, down: Record, reply: Record, rows: np.ndarray, runs: np.ndarray, clients: int = 1
    ) -> Iterator[Check]:
        """What is looked at in replies [...] of clients with so many rows [...], in these runs [...]; each of them may
        be the sum of so many clients' replies."""
        lead = rows.ndim
        for name, limits in self._fields.items():
            bound, value = limits.bound, reply[name]
            low, high, per_row, norm, alike = limits.of(runs, rows)
            if clients > 1:
                low, high = low * clients, high * clients
                if norm is not None and (limits.update is None or limits.update.weight is None):
                    norm = norm * clients
            if norm is not None:
                weight = limits.update.weight if limits.update is not None else None
                grids = self._grid(name, clients), 0.0 if weight is None else self._grid(weight, clients)
                yield _of_norm(name, limits, norm, alike, down, reply, rows, grids)
            if per_row is not None:
                yield _of_sum(name, per_row, alike, value, rows, self._grid(name, clients))
            if (norm is None and per_row is None) or bound.low != -np.inf:
                most = rows if bound.high == ROWS else high
                for leaf in tree.leaves(value):
                    if leaf.numel():
                        numbers = _flat(_array(leaf), lead)
                        # all rows that there are: of whole ones no other number need be compared with anything
                        if bound is not COUNT or clients > 1 or (numbers != rows[..., None]).any():
                            yield from _of_numbers(name, bound, low, most, numbers, rows, self._grid(name, clients))
        if self._hidden:
            for name, places in self._places.items():
                for leaf in tree.leaves(reply[name]):
                    if leaf.numel():
                        check = _of_range(name, leaf, self._clients, places, lead)
                        yield check._replace(most=check.most * clients)

    def _grid(self, field: str, clients: int) -> float:
        """How far a number of the sum of so many clients' replies may be off because each was made an integer."""
        return clients * 2.0 ** -(self._places[field] + 1) if self._hidden and clients > 1 else 0.0


class Replies(NamedTuple):
    """The replies to one exchange in many runs, one at each place [...] of the arrays; trees have leaves [..., ...]."""

    down: Record
    reply: Record
    kept: Tree
    """What the clients keep."""
    runs: np.ndarray
    slots: np.ndarray
    """The clients' positions in their run's cohort."""
    rows: np.ndarray
    """How many training rows they have."""


_PARTS = ("low", "high", "per_row", "norm", "alike")


def bound_of(phase: Phase, channel: Channel, field: str) -> Bound:
    """The bound of a field of the reply; any finite numbers where none is declared."""
    if field in phase.updates:
        most = channel.max_update if channel.clip is None else min(float(channel.clip), float(channel.max_update))
        return Bound(norm=most, alike=SHORT)
    return phase.bounds.get(field) or BOUNDS.get(field) or Bound()


def unbounded(phase: Phase) -> list[str]:
    """Fields of the reply of which nothing is known but that they are numbers."""
    return [name for name in phase.up if name not in {*BOUNDS, *phase.bounds, *phase.updates, *phase.codecs}]


def finite(value: Tree) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in tree.leaves(value))


def most_beside(sizes: np.ndarray) -> np.ndarray:
    """The norm up to which a reply is like the others [R], from those of all [R, K]; nan where there is none."""

    def most(line: np.ndarray) -> float:
        moved = line[line > 0]
        if len(moved) < ENOUGH:
            return np.inf
        middle = np.sort(moved)[[(len(moved) - 1) // 2, len(moved) // 2]]
        return TIMES * float(middle.mean())

    return np.array([most(line) for line in sizes])


def too_long(field: str, size: float, most: float) -> str:
    """What is said of a reply that is far longer than the others."""
    return f"has {field} with a norm of {size:g}, above {most:g}: the other replies are not nearly as long"


# -- parts of a bound --------------------------------------------------------------------------------------------------


def _of_norm(
    name: str,
    limits: _Limits,
    most: Any,
    alike: Any,
    down: Record,
    reply: Record,
    rows: np.ndarray,
    grids: tuple[float, float],
) -> Check:
    """The norm of a field as it is, or of the update in it. grids: how far their numbers and their weight are off."""
    value, update, lead = reply[name], limits.update, rows.ndim
    off: Any = grids[0] * _root_of_size(value, lead)

    def words(found: float, most: float) -> str:
        if update is not None and limits.clipped:
            return f"has an update in {name} with a norm above {most:g}, to which updates are clipped"
        return f"has {'an update in ' if update else ''}{name} with a norm of {found:g}, above {most:g}"

    if update is None:
        found, share = _norm(tree.leaves(value), lead), room(rows)
    else:  # no sum over rows: a model less another one
        difference = update_of(update, down, value)
        found, share = _norm(tree.leaves(difference), lead), room()
        if update.around is not None:  # as exact as the two models are
            off = off + UNIT * OF_WHOLE * _norm(tree.leaves(value), lead)
        if update.weight is not None:  # without a weight there is no update: 0 / 0
            weight = np.maximum(_array(reply[update.weight]), 1e-30)
            found, off = found / weight, (off + (most * grids[1] if grids[1] else 0.0)) / weight
    return Check(name, found, most, share * most + off, words, alike, 0.0 if alike is None else share * alike + off)


def _of_sum(name: str, most: Any, alike: Any, value: Tree, rows: np.ndarray, grid: float) -> Check:
    """The norm of a sum over rows, by row."""

    def words(found: float, most: float) -> str:
        return f"has {name} with a norm of {found:g} per row that it declared, above {most:g}"

    number, share = np.maximum(rows, 1e-30), room(rows)
    found = _norm(tree.leaves(value), rows.ndim) / number
    off = grid * _root_of_size(value, rows.ndim) / number
    return Check(name, found, most, share * most + off, words, alike, 0.0 if alike is None else share * alike + off)


def _of_numbers(
    name: str, bound: Bound, low: Any, high: Any, values: np.ndarray, rows: np.ndarray, grid: float
) -> Iterator[Check]:
    """Every number of one tensor [..., n], whether it is whole, and their sum. grid: how far each is off."""
    declared = ", the rows that it declared" if bound.high == ROWS else ""

    def outside(found: float, _: float) -> str:
        return f"has {name} outside {float(low):g} to {float(high):g}{declared}: {found:g}"

    def rounding(limit: Any) -> Any:
        if bound.whole:
            return room_of_whole(abs(limit))
        # a difference that is 0 rounds by a share of what it is the difference of
        return room(rows) * (rows if bound.per_row is not None else abs(limit) + 1.0) + grid

    alone = values.shape[-1] == 1
    least, greatest = (values[..., 0], values[..., 0]) if alone else (values.min(-1), values.max(-1))
    endless = bound.low == -np.inf
    yield Check(name, -least, -low, 0.0 if endless else rounding(low), lambda found, most: outside(-found, most))
    endless = bound.high == np.inf
    yield Check(name, greatest, high, 0.0 if endless else rounding(high), outside)
    if bound.whole:
        broken = values != np.rint(values)
        fractions = broken[..., 0] if alone else broken.any(-1)
        yield Check(name, fractions, 0.0, 0.0, lambda found, _: f"has {name} that are no whole numbers")
    if bound.adds_up:
        total = values.sum(-1, dtype=np.float64)
        yield Check(name, total, rows, room_of_whole(rows), lambda found, most: _too_many(name, found, most))


def _of_range(name: str, leaf: Tensor, clients: int, places: int, lead: int) -> Check:
    """The largest number of one tensor, which a secure sum must hold; compared in 64 bits, as integers are made."""
    numbers = leaf if leaf.is_floating_point() else leaf.double()
    found = numbers.reshape(*leaf.shape[:lead], -1).abs().amax(-1).double().cpu().numpy()
    words = f"has {name} {fixed_point.beyond(clients, places)}"
    return Check(name, found, fixed_point.largest(clients, places), 0.0, lambda *_: words)


def _too_many(name: str, found: float, rows: float) -> str:
    return f"has {name} that add up to {found:g}, more than the {rows:g} rows that it declared"


def _root_of_size(value: Tree, lead: int) -> float:
    """The norm of as many ones as one reply's value has numbers."""
    return float(np.sqrt(sum(np.prod(leaf.shape[lead:]) for leaf in tree.leaves(value))))


def _flat(values: np.ndarray, lead: int) -> np.ndarray:
    """[..., n], as numbers with a fraction."""
    return (values if values.dtype.kind == "f" else values.astype(np.float32)).reshape(*values.shape[:lead], -1)


def _array(leaf: Tensor) -> np.ndarray:
    return leaf.numpy() if leaf.is_cpu else leaf.cpu().numpy()


def _norm(leaves: Sequence[Tensor], lead: int) -> np.ndarray:
    """||value||_2 over all but the leading axes [...] of all leaves. One reply alone is squared in 64 bits, where
    nothing of 32 overflows; of many, a norm above 1e19 may come out as Inf, which is no reason yet to refuse it."""
    squares: Any = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for leaf in leaves:
            if leaf.is_cpu:
                flat = _flat(leaf.numpy() if lead else leaf.double().numpy(), lead)
                square = np.matmul(flat[..., None, :], flat[..., None])[..., 0, 0]
            else:
                flat_there = leaf.reshape(*leaf.shape[:lead], -1)
                norm = torch.linalg.vector_norm(flat_there, dim=-1, dtype=None if lead else torch.float64)
                square = np.square(norm.cpu().numpy(), dtype=np.float64)
            squares = square.astype(np.float64) + squares
        total: np.ndarray = np.sqrt(squares)
    return total
