"""Notes: events of a run that a reader should know about. A note is a value that code can filter and files can store;
its text is made here, when it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Note", "ranges", "when"]


@dataclass(frozen=True, repr=False)
class Note:
    """One event. `str(note)` is its text."""

    kind: str
    """Key of `WORDS`."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Values for the text, in JSON's types."""

    def __str__(self) -> str:
        return WORDS[self.kind](**self.fields)

    def __repr__(self) -> str:
        return f"<Note {self.kind}: {self}>"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "fields": dict(self.fields)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Note:
        return cls(value["kind"], value["fields"])


# -- helpers of wording ------------------------------------------------------------------------------------------------


def ranges(numbers: Iterable[int]) -> str:
    """Return the numbers as text with ranges: `3, 5 to 9`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)


def when(rounds: Iterable[int]) -> str:
    """Return rounds as text: `before round 1 and in rounds 3, 5 to 9`; 0 means the exchanges before round 1."""
    numbers = set(rounds)
    later = numbers - {0}
    parts = ["before round 1"] * (0 in numbers)
    parts += [f"in round{'s' * (len(later) > 1)} {ranges(later)}"] if later else []
    return " and ".join(parts)


def _runs(runs: int, of: int, seed: int, hyper: Mapping[str, float]) -> str:
    """Return `the run`, or the number of runs and the first of them."""
    if of == 1:
        return "the run"
    setting = "".join(f", {name} {value:g}" for name, value in hyper.items())
    return f"{runs} of {of} runs (first: seed {seed}{setting})"


# -- the words of each kind --------------------------------------------------------------------------------------------


def _rounds_not_applied(obstacle: Mapping[str, Any], count: int, of: int, rounds: Sequence[int], seed: int) -> str:
    reason = Note.from_json(obstacle)
    return f"{count} of {of} rounds left the model as it was: {reason} (first: seed {seed}, round {rounds[0]})."


def _withheld(client: str, counts: Sequence[str], predicted: Sequence[str]) -> str:
    what = f"the confusion counts for {', '.join(counts)}{_and_predicted(predicted)}"
    return f"{client} withholds {what}: they are too small to be disclosed."


def _and_predicted(predicted: Sequence[str]) -> str:
    return f" and the prediction counts for {', '.join(predicted)}" if predicted else ""


def _groups_merged(group: str, min_group: int, rows: Mapping[str, int]) -> str:
    merged = f"were merged into one group, {group!r}"
    if not rows:
        return f"Groups with fewer than {min_group:,} rows, which the schema does not list, {merged}."
    listed = ", ".join(f"{name} ({count:,} rows)" for name, count in rows.items())
    return f"Groups with fewer than {min_group:,} of all rows {merged}: {listed}."


def _rows_dropped(rows: int) -> str:
    return f"{rows:,} training and test rows were left out because an input value is missing."


def _columns_left_out(columns: Mapping[str, str]) -> str:
    return "Columns not used as inputs: " + "; ".join(f"{name!r} ({why})" for name, why in columns.items()) + "."


def _unknown_groups(rows: Mapping[str, int], of: Mapping[str, int]) -> str:
    names = {"train": "training", "validation": "validation", "test": "test"}
    listed = [f"{rows[part]:,} of {of[part]:,} {name} rows" for part, name in names.items() if rows.get(part)]
    return (
        f"The group of {', '.join(listed)} is unknown: they are used for training and for metrics over all rows, but "
        "not for metrics by group."
    )


def _disclosed(rows: int, of: int) -> str:
    if not rows:
        return f"The confusion counts of all {of:,} test rows are withheld, so accuracy and error rates are unknown."
    return f"Accuracy and error rates rest on the {rows:,} of {of:,} test rows whose counts are disclosed."


def _clipped(fields: Mapping[str, Sequence[str]], norms: Sequence[Mapping[str, float]]) -> str:
    names = ", ".join(dict.fromkeys(name for phase in fields.values() for name in phase))
    share = [f"{norm['norm']:g} ({norm['share']:.0%})" for norm in norms]
    return (
        f"The clients' model updates ({names}) were clipped to the L2 norm {', '.join(share)}; in brackets, the share "
        "of replies with a longer one."
    )


def _robust(rule: str, liars: float, cut: Mapping[str, Sequence[float]], simulated: bool) -> str:
    most = ", ".join(f"{client} ({share:.0%}, all clients {everyone:.0%})" for client, (share, everyone) in cut.items())
    compare = (
        "results with the plain mean are shown, too" if simulated else "compare with a run or simulation without it"
    )
    return (
        f"Updates were aggregated with {rule}, which tolerates up to {100 * liars:g} % malicious clients"
        + (f"; cut most: {most}" if most else "")
        + f". It may cut honest clients that are unlike the others, such as those of a minority: {compare}."
    )


def _few_fitted(method: str, few: int, groups: Mapping[str, int], clients: int) -> str:
    listed = ", ".join(f"{name} ({rows:,})" for name, rows in groups.items())
    where = f" at {clients} client{'s' * (clients > 1)}; the least" if clients else ""
    return (
        f"{method} fits its decisions for some groups on fewer than {few} training rows{where}: {listed}. On other "
        "rows, the gap of these groups will be mostly noise."
    )


def _stopped_early(runs: int, of: int, first: int, last: int, rounds: int) -> str:
    who = "The run" if of == 1 else f"{runs} of {of} runs"
    at = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"{who} converged and stopped at {at} of {rounds}; `log` has the round of each."


_DECAY = " A smaller dual_decay brings it closer."


def _constraint_missed(
    runs: int, of: int, seed: int, hyper: Mapping[str, float], excess: float | None, remedy: str
) -> str:
    by = "" if excess is None else f", by {float(excess):.3g} there"
    labels = (
        ' It holds for the labels expected from the scores; with calibration = "isotonic" it holds for the actual ones.'
    )
    known = {"rounds": " More rounds may help.", "dual_decay": _DECAY, "calibration": labels, "": ""}
    advice = known.get(remedy, f" Another {remedy} may help.")
    return f"The constraint is not met at the end of {_runs(runs, of, seed, hyper)}{by}; see `log`.{advice}"


def _constraint_nearly_met(
    runs: int, of: int, seed: int, hyper: Mapping[str, float], excess: float, remedy: str
) -> str:
    who = _runs(runs, of, seed, hyper)
    return (
        f"{who[0].upper()}{who[1:]} ended {float(excess):.3g} above the constraint's bound, within the tolerance that "
        f"the decay of its multipliers allows; see `excess` in `log`.{_DECAY if remedy == 'dual_decay' else ''}"
    )


NOT_FUSED = {
    "loss": "compiled loops do not support its loss (only EmpiricalRisk)",
    "after_step": "the method changes the parameters after each step of the optimiser",
    "model": "the model is neither linear nor a fully connected network of tanh, relu and sigmoid layers",
    "dropout": "the model has dropout, which compiled loops do not support",
    "frozen": "a part of the model is frozen, which compiled loops do not support",
    "wide": "the model and its batches are so large that most time goes into matrix products, where torch is faster",
    "parameters": "it trains more than the model's parameters",
    "device": "there are no compiled loops for its device",
    "triton": "Triton, which compiles loops for a GPU, is not installed",
}
"""Reasons why local training does not run in one compiled loop."""


def _kernel(phase: str, kernel: str, obstacle: str = "") -> str:
    if kernel == "fused":
        return f"Local training ({phase}) ran fused: all steps of a client in one compiled loop."
    way = "one client after another by torch's own operations" if kernel == "clients" else "for all clients at once"
    why = f": {NOT_FUSED[obstacle]}" if obstacle else ""
    return f"Local training ({phase}) ran step by step, {way}, not in one compiled loop{why}."


WORDS: Mapping[str, Callable[..., str]] = {
    # reasons why a round had no effect: parts of a sentence
    "too-few-replies": lambda: "too few usable replies came",
    "too-few-for-rule": lambda rule, needed, liars: (
        f"{rule} needs {needed} updates to tolerate {liars} malicious client{'s' * (liars != 1)}, and fewer came"
    ),
    "server-step-failed": lambda phase, error: f"the server's step of {phase} failed with {error}",
    "too-few-masked": lambda masked, cohort, needed: f"{masked} of {cohort} masked replies came, {needed} are needed",
    "too-few-unmasked": lambda told, masked, cohort, needed: (
        f"{told} of {masked} clients helped to unmask the sum, {needed} are needed"
        + " when a client of the cohort has dropped out" * (masked < cohort)
    ),
    "shares-unfit": lambda client, shares, needed: (
        f"the mask of {client} could not be rebuilt from the {shares} shares that came ({needed} valid ones are needed)"
    ),
    "sum-unfit": lambda clients: f"the replies of {', '.join(clients)} do not fit the exchange",
    "impossible-sum": lambda phase, field: (
        f"at least one client sent impossible values: honest replies cannot add up to the {field} of {phase}"
    ),
    "model-not-finite": lambda phase: f"after {phase} the model would have NaN or Inf",
    # how the engine ran
    "unbounded": lambda phase, fields: (
        f"The method declares no bounds for {', '.join(fields)} in {phase}: any finite numbers from a client are used. "
        "Declare `bounds` in the phase."
    ),
    "kernel": _kernel,
    "compiling-failed": lambda error: f"Compiling the training step failed ({error}); it runs uncompiled, and slower.",
    "nothing-dropped": lambda method: (
        f"The model's dropout had no effect: it applies to steps of local training, and {method} has none at clients."
    ),
    "no-compiler": lambda: (
        "With a C++ compiler, this long run could be compiled and run several times faster; none was found."
    ),
    "secure-simulated": lambda: (
        "Secure aggregation was simulated, with its fixed point, thresholds and drop-outs, but without encryption. "
        "Values of single clients are shown because the clients are simulated: in a real federation with secure "
        "aggregation, only the silo itself knows them."
    ),
    # what the groups are
    "groups-merged": _groups_merged,
    "unknown-groups": _unknown_groups,
    "rows-dropped": _rows_dropped,
    "columns-left-out": _columns_left_out,
    # what happened in the rounds
    "no-test-rows": lambda: "The federation has no test rows, so nothing was measured.",
    "rounds-not-applied": _rounds_not_applied,
    "replies-rejected": lambda count: (
        f"{count} repl{'y was' if count == 1 else 'ies were'} rejected; `rejections` lists clients, rounds and reasons."
    ),
    "did-not-answer": lambda client, rounds, reasons: f"{client} did not answer {when(rounds)} ({'; '.join(reasons)}).",
    "false-shares": lambda client, rounds: f"{client} sent false mask shares, which were ignored, {when(rounds)}.",
    "gone-late": lambda client, round, phase, reason: (
        f"{client} dropped out in round {round} between its masked reply ({phase}) and the unmasking of the sum: "
        f"{reason}."
    ),
    "clipped": _clipped,
    "robust": _robust,
    "validation-shown": lambda rows: (
        f"The server's {rows:,} validation rows were sent to the clients, which measured fairness on them, so that "
        "clients did not have to send their models singly."
    ),
    "sum-of-few": lambda method, rounds, of, one: (
        f"In {rounds} of {of} rounds, a sum of {method} was over fewer than three clients"
        + (f", in {one} over a single client, and disclosed its reply to the server" if one else "")
        + ": see `fewest_clients` in `log`. min_clients = 3 prevents such sums."
    ),
    # how runs ended
    "stopped-early": _stopped_early,
    "few-fitted": _few_fitted,
    "constraint-missed": _constraint_missed,
    "constraint-nearly-met": _constraint_nearly_met,
    # what silos did not disclose
    "did-not-evaluate": lambda client, round, reason: f"{client} did not evaluate round {round}: {reason}.",
    "withheld": _withheld,
    "not-evaluated": lambda round, obstacle: f"Round {round} could not be evaluated: {Note.from_json(obstacle)}.",
    "withheld-totals": lambda counts, predicted: (
        f"The confusion counts for {', '.join(counts)}{_and_predicted(predicted)} are withheld: those of all silos "
        "together are too small to be disclosed."
    ),
    "disclosed": _disclosed,
}
"""Text of each kind of note, from its fields."""
