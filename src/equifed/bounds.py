"""Bounds: the limits of an honest client's reply, and the reasons for refusing a reply beyond them.

A reply with finite numbers can still be impossible: more rows than the client has, a sum over 37 rows that is longer
than 37 rows can make it, an update of norm 1e30. Every field of every reply has a bound (`protocol.Bound`, or the norm
of an update). The same checks run on single replies, at the server of a real federation and at a silo before it sends,
and on all lanes of the simulator at once. A client beyond a bound is refused, and the round continues without it.

An update u (see `equifed.channel`), and the mean over rows u of a sum that declares `alike`, must satisfy

    ||u|| <= max_update, or the norm that updates are clipped to;  per_row for the sum
    ||u|| <= max(1, 100 median of ||u|| over the replies to the exchange),  if at least three are not 0; in other
             fields, such as sums of losses, `alike` replaces the 1

With secure aggregation, single replies are hidden, so there is no median; every number must fit into the secure sum.

A bound holds for real numbers, and replies are computed in floating point. Each operation in 32 bits has a relative
rounding error of at most 2^-24, so that a number after d of them, one after the other, may lie beyond its bound L by

    L d 2^-24,    d = min(2^10 + rows added up, 2^14)

2^10 is more than functions, layers and states kept over the rounds take. Rows are added in blocks, vector lanes or
trees, never one by one: d stays below 2^14 (a share of 0.001) for any number of rows; see `over_rows`. Whole numbers
are exact up to 2^24. Sums of integers (`secure`) are off by half of the last binary place for each client.

Norms are computed on the tensors' device; everything else in NumPy, which is faster than torch for few numbers.
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
"""Largest ratio of a norm to the median of all replies; norm of an update up to which it is not compared; number of
replies needed for a comparison."""
UNIT = 2.0**-24
"""Relative rounding error of one operation in 32 bits."""
ROUNDINGS, IN_A_ROW = 2**10, 2**14
"""Largest number of operations behind a number before it is added up; the same with any number of additions."""
EXACT, OF_WHOLE = 2.0**24, 16
"""Limit up to which whole numbers are exact; roundings in a sum of larger ones."""
NOT_FINITE = "NaN or Inf in its reply"


def room(added: Any = 0) -> Any:
    """Return the largest rounding error beyond a bound, as a share of it, of a sum of `added` numbers."""
    return UNIT * np.minimum(ROUNDINGS + added, IN_A_ROW)


def room_of_whole(limit: Any) -> Any:
    """Return the largest rounding error of whole numbers up to `limit`."""
    return np.where(limit < EXACT, 0.0, UNIT * OF_WHOLE * limit)


class BoundCheck(NamedTuple):
    """One quantity of replies [...], which are possible where found <= most + slack."""

    field: str
    found: np.ndarray
    """The quantity [...]."""
    most: np.ndarray | float
    """Largest possible value [...], or one for all."""
    slack: np.ndarray | float
    """Room for rounding."""
    words: Callable[[float, float], str]
    """Makes the reason for a refusal from `found` and `most`; it may follow "its reply"."""
    alike: np.ndarray | float | None = None
    """Value above which the quantity is compared with that of other replies."""
    alike_slack: np.ndarray | float = 0.0
    """Room for rounding above `alike`."""

    @property
    def is_met(self) -> np.ndarray:
        """True where a reply is possible [...]."""
        limit = self.most + self.slack
        met: np.ndarray = self.found < np.inf if isinstance(limit, float) and limit == np.inf else self.found <= limit
        return met

    @property
    def is_long(self) -> np.ndarray:
        """True where the quantity has to be compared with that of other replies [...]."""
        assert self.alike is not None
        long: np.ndarray = self.found > self.alike + self.alike_slack
        return long


@dataclass(frozen=True)
class _Limits:
    """The limits of a field as numbers: one for all runs, or one for each run [R]."""

    low: Any
    high: Any
    per_row: Any
    norm: Any
    alike: Any
    bound: Bound
    """Bound in the first run: all runs set the same limits."""
    update: Update | None
    clipped: bool

    def of(self, runs: np.ndarray, rows: np.ndarray) -> tuple[Any, ...]:
        """Return low, high, per_row, norm and alike in these runs, for clients with `rows` rows."""
        low, high, per_row, norm, alike = (part[runs] if isinstance(part, np.ndarray) else part for part in self._parts)
        return low, high, per_row(rows) if callable(per_row) else per_row, norm, alike

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        return tuple(getattr(self, part) for part in _PARTS)


class Bounds:
    """The bounds of all fields of a phase's reply.

    phases: the phase and the channel with each run's hyperparameters, or one pair for all runs.
    clients: number of clients asked, for which a secure sum must have room.
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
        self._hidden, self._clients = channel.is_hidden(first), clients
        self._places = {name: first.places.get(name, fixed_point.PLACES) for name in first.up}
        self._fields: dict[str, _Limits] = {}
        # updates last: a wrong weight is reported before the update that it makes wrong
        for name in sorted(first.up, key=lambda name: name in first.updates):
            if name in first.codecs:
                continue
            bounds = [bound_of(phase, channel, name) for phase, channel in phases]
            parts = {part: numbers([getattr(bound, part) for bound in bounds]) for part in _PARTS}
            self._fields[name] = _Limits(
                **parts, bound=bounds[0], update=first.updates.get(name), clipped=channel.clip is not None
            )

    def find_problem(self, down: Record, reply: Record, rows: int, run: int = 0) -> str:
        """Return why the reply of a client with `rows` rows is impossible; empty if it is possible."""
        for check in self.checks(down, reply, np.array(rows), np.array(run)):
            if not check.is_met:
                found, most = float(check.found), float(check.most)
                return check.words(found, most) if np.isfinite(found) else f"has NaN or Inf in {check.field}"
        return ""

    def find_impossible(self, down: Record, total: Record, clients: int, rows: int) -> str:
        """Return the first field that is impossible in the sum of the replies of `clients` clients with at most `rows`
        rows in all, or "". The sum does not show which client caused it."""
        down = tree.map(lambda leaf: leaf * clients, down)
        for check in self.checks(down, total, np.array(rows), np.array(0), clients):
            if not check.is_met:
                return check.field
        return ""

    def find_refused(
        self, down: Record, replies: Mapping[int, Record], rows: Mapping[int, int], run: int = 0
    ) -> dict[int, str]:
        """Return the reasons for refusing replies to an exchange that are impossible or far longer than the others."""
        found = {client: self.find_problem(down, reply, rows[client], run) for client, reply in replies.items()}
        found = {client: wrong for client, wrong in found.items() if wrong}
        compared: dict[str, dict[int, BoundCheck]] = {}
        for client in replies.keys() - found.keys():
            for check in self.checks(down, replies[client], np.array(rows[client]), np.array(run)):
                if check.alike is not None and not self._hidden:
                    compared.setdefault(check.field, {})[client] = check
        for field, checks in compared.items():
            longest = find_longest(np.array([[float(check.found) for check in checks.values()]]))[0]
            for client, check in checks.items():
                if check.is_long and check.found > longest:
                    limit = max(float(check.alike), longest)  # type: ignore[arg-type]
                    found[client] = describe_too_long(field, float(check.found), limit)
        return found

    def find_refused_in_runs(self, replies: Replies, here: np.ndarray) -> dict[tuple[int, ...], str]:
        """Return the reasons for refusing replies of many runs, by their place, among those that are `here` [...]. All
        are checked together first; the check of a single reply, in 64 bits, decides."""
        down, reply, kept, runs, slots, rows = replies
        checks = list(self.checks(down, reply, rows, runs))
        parts = [check.is_met for check in checks]
        parts += [_norm([leaf], runs.ndim) < np.inf for leaf in tree.leaves(kept) if leaf.is_floating_point()]
        compared = [] if self._hidden else [check for check in checks if check.alike is not None]
        long = [check for check in compared if check.is_long.any()]
        found: dict[tuple[int, ...], str] = {}
        if not long and all(part.all() for part in parts):
            return found
        fine = np.logical_and.reduce(parts)
        for place in zip(*np.nonzero(here & ~fine), strict=True):
            sent, replied, own = tree.map(lambda leaf, place=place: leaf[place], (down, reply, kept))
            finite = is_finite((replied, own))
            wrong = self.find_problem(sent, replied, int(rows[place]), int(runs[place])) if finite else NOT_FINITE
            if wrong:
                found[place] = wrong
        here = here.copy()
        for place in found:
            here[place] = False
        for check in long:
            sizes = np.full((runs.max() + 1, slots.max() + 1), np.nan)
            sizes[runs[here], slots[here]] = check.found[here]
            longest = find_longest(sizes)[runs]
            for place in zip(*np.nonzero(here & check.is_long & (check.found > longest)), strict=True):
                sent, replied = tree.map(lambda leaf, place=place: leaf[place], (down, reply))
                alone = self._comparison(check.field, sent, replied, rows[place], runs[place])
                if alone.is_long and alone.found > longest[place]:
                    limit = float(np.fmax(alone.alike, longest[place]))  # type: ignore[arg-type]
                    found[place] = describe_too_long(check.field, float(alone.found), limit)
        return found

    def _comparison(self, field: str, down: Record, reply: Record, rows: np.ndarray, run: np.ndarray) -> BoundCheck:
        """Return the check that compares a field of one reply with other replies, in 64 bits."""
        checks = self.checks(down, reply, np.array(rows), np.array(run))
        return next(check for check in checks if check.field == field and check.alike is not None)

    def checks(
        self, down: Record, reply: Record, rows: np.ndarray, runs: np.ndarray, clients: int = 1
    ) -> Iterator[BoundCheck]:
        """Yield the checks of replies [...] of clients with `rows` rows [...], in these runs [...]; each reply may be a
        sum over `clients` clients."""
        lead = rows.ndim
        # In a sum over clients, limits are multiplied by their number. A field with a norm or a norm per row is not
        # checked number by number, unless it has a lower limit.
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
                yield _check_norm(name, limits, norm, alike, down, reply, rows, grids)
            if per_row is not None:
                yield _check_sum(name, per_row, alike, value, rows, self._grid(name, clients))
            if (norm is None and per_row is None) or bound.low != -np.inf:
                most = rows if bound.high == ROWS else high
                for leaf in tree.leaves(value):
                    if leaf.numel():
                        numbers = _flat(_array(leaf), lead)
                        # counts that equal the client's rows, as most do, need no further check
                        if bound is not COUNT or clients > 1 or (numbers != rows[..., None]).any():
                            yield from _check_numbers(name, bound, low, most, numbers, rows, self._grid(name, clients))
        if self._hidden:
            for name, places in self._places.items():
                for leaf in tree.leaves(reply[name]):
                    if leaf.numel():
                        check = _check_range(name, leaf, self._clients, places, lead)
                        yield check._replace(most=check.most * clients)

    def _grid(self, field: str, clients: int) -> float:
        """Return the largest error of a number in a sum over `clients` clients that comes from fixed point."""
        return clients * 2.0 ** -(self._places[field] + 1) if self._hidden and clients > 1 else 0.0


class Replies(NamedTuple):
    """The replies to one exchange in many runs, one at each place [...] of the arrays; trees have leaves [..., ...]."""

    down: Record
    reply: Record
    kept: Tree
    """State that the clients keep."""
    runs: np.ndarray
    slots: np.ndarray
    """The clients' positions in their run's cohort."""
    rows: np.ndarray
    """The clients' numbers of training rows."""


_PARTS = ("low", "high", "per_row", "norm", "alike")


def bound_of(phase: Phase, channel: Channel, field: str) -> Bound:
    """Return the bound of a field of the reply; without a declared one, any finite numbers."""
    if field in phase.updates:
        most = channel.max_update if channel.clip is None else min(float(channel.clip), float(channel.max_update))
        return Bound(norm=most, alike=SHORT)
    return phase.bounds.get(field) or BOUNDS.get(field) or Bound()


def unbounded_fields(phase: Phase) -> list[str]:
    """Return the fields of the reply without a bound, update or codec."""
    return [name for name in phase.up if name not in {*BOUNDS, *phase.bounds, *phase.updates, *phase.codecs}]


def is_finite(value: Tree) -> bool:
    """Return True if no tensor has NaN or Inf."""
    return all(bool(leaf.isfinite().all()) for leaf in tree.leaves(value))


def find_longest(sizes: np.ndarray) -> np.ndarray:
    """Return the largest norm [R] that a comparison of all norms [R, K] allows; Inf if there are too few. nan: none."""

    def most(line: np.ndarray) -> float:
        moved = line[line > 0]
        if len(moved) < ENOUGH:
            return np.inf
        middle = np.sort(moved)[[(len(moved) - 1) // 2, len(moved) // 2]]
        return TIMES * float(middle.mean())

    return np.array([most(line) for line in sizes])


def describe_too_long(field: str, size: float, most: float) -> str:
    """Return the reason for refusing a reply that is far longer than the others."""
    return f"has {field} with a norm of {size:g}, above {most:g}: the other replies are not nearly as long"


# -- parts of a bound --------------------------------------------------------------------------------------------------


def _check_norm(
    name: str,
    limits: _Limits,
    most: Any,
    alike: Any,
    down: Record,
    reply: Record,
    rows: np.ndarray,
    grids: tuple[float, float],
) -> BoundCheck:
    """Check the norm of a field, or of the update in it. grids: the fixed-point errors of the field and its weight."""
    value, update, lead = reply[name], limits.update, rows.ndim
    off: Any = grids[0] * _root_of_size(value, lead)

    def words(found: float, most: float) -> str:
        if update is not None and limits.clipped:
            return f"has an update in {name} with a norm above {most:g}, to which updates are clipped"
        return f"has {'an update in ' if update else ''}{name} with a norm of {found:g}, above {most:g}"

    if update is None:
        found, share = _norm(tree.leaves(value), lead), room(rows)
    else:  # the difference of two models, not a sum over rows
        difference = update_of(update, down, value)
        found, share = _norm(tree.leaves(difference), lead), room()
        if update.around is not None:  # the difference has the rounding errors of both models
            off = off + UNIT * OF_WHOLE * _norm(tree.leaves(value), lead)
        if update.weight is not None:  # without a weight there is no update: 0 / 0
            weight = np.maximum(_array(reply[update.weight]), 1e-30)
            found, off = found / weight, (off + (most * grids[1] if grids[1] else 0.0)) / weight
    alike_slack = 0.0 if alike is None else share * alike + off
    return BoundCheck(name, found, most, share * most + off, words, alike, alike_slack)


def _check_sum(name: str, most: Any, alike: Any, value: Tree, rows: np.ndarray, grid: float) -> BoundCheck:
    """Check the norm per row of a sum over rows."""

    def words(found: float, most: float) -> str:
        return f"has {name} with a norm of {found:g} per row that it declared, above {most:g}"

    number, share = np.maximum(rows, 1e-30), room(rows)
    found = _norm(tree.leaves(value), rows.ndim) / number
    off = grid * _root_of_size(value, rows.ndim) / number
    alike_slack = 0.0 if alike is None else share * alike + off
    return BoundCheck(name, found, most, share * most + off, words, alike, alike_slack)


def _check_numbers(
    name: str, bound: Bound, low: Any, high: Any, values: np.ndarray, rows: np.ndarray, grid: float
) -> Iterator[BoundCheck]:
    """Check each number of one tensor [..., n], that it is whole, and their sum. grid: each number's error."""
    declared = ", the rows that it declared" if bound.high == ROWS else ""

    def outside(found: float, _: float) -> str:
        return f"has {name} outside {float(low):g} to {float(high):g}{declared}: {found:g}"

    def rounding(limit: Any) -> Any:
        if bound.whole:
            return room_of_whole(abs(limit))
        # a difference near 0 has the rounding error of its terms
        return room(rows) * (rows if bound.per_row is not None else abs(limit) + 1.0) + grid

    alone = values.shape[-1] == 1
    least, greatest = (values[..., 0], values[..., 0]) if alone else (values.min(-1), values.max(-1))
    endless = bound.low == -np.inf
    yield BoundCheck(name, -least, -low, 0.0 if endless else rounding(low), lambda found, most: outside(-found, most))
    endless = bound.high == np.inf
    yield BoundCheck(name, greatest, high, 0.0 if endless else rounding(high), outside)
    if bound.whole:
        broken = values != np.rint(values)
        fractions = broken[..., 0] if alone else broken.any(-1)
        yield BoundCheck(name, fractions, 0.0, 0.0, lambda found, _: f"has {name} that are not whole numbers")
    if bound.adds_up:
        total = values.sum(-1, dtype=np.float64)
        yield BoundCheck(name, total, rows, room_of_whole(rows), lambda found, most: _describe_sum(name, found, most))


def _check_range(name: str, leaf: Tensor, clients: int, places: int, lead: int) -> BoundCheck:
    """Check that a secure sum has room for one tensor; compared in 64 bits, in which the integers are computed."""
    numbers = leaf if leaf.is_floating_point() else leaf.double()
    found = numbers.reshape(*leaf.shape[:lead], -1).abs().amax(-1).double().cpu().numpy()
    words = f"has {name} {fixed_point.describe_limit(clients, places)}"
    return BoundCheck(name, found, fixed_point.largest(clients, places), 0.0, lambda *_: words)


def _describe_sum(name: str, found: float, rows: float) -> str:
    return f"has {name} that add up to {found:g}, more than the {rows:g} rows that it declared"


def _root_of_size(value: Tree, lead: int) -> float:
    """Return the square root of the number of entries in one reply's value."""
    return float(np.sqrt(sum(np.prod(leaf.shape[lead:]) for leaf in tree.leaves(value))))


def _flat(values: np.ndarray, lead: int) -> np.ndarray:
    """Return the values as floats [..., n]."""
    return (values if values.dtype.kind == "f" else values.astype(np.float32)).reshape(*values.shape[:lead], -1)


def _array(leaf: Tensor) -> np.ndarray:
    return leaf.numpy() if leaf.is_cpu else leaf.cpu().numpy()


def _norm(leaves: Sequence[Tensor], lead: int) -> np.ndarray:
    """Return ||value||_2 over all but the leading axes [...] of all leaves. A single reply is squared in 64 bits, where
    32-bit numbers do not overflow; with many, a norm above 1e19 may be Inf, and the reply is then checked singly."""
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
