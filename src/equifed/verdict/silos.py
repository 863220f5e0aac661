"""The silos of a real federation: who was missing when, what was refused, what is withheld, and what is unknown
because their replies were summed securely. A simulation has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.metrics.catalogue import describe
from equifed.notes import Note, ranges, when
from equifed.verdict import wording

if TYPE_CHECKING:
    from equifed.results.result import Result

DISCLOSED = "disclosed"
"""A group's test rows whose labels and predictions are disclosed: a metric of groups, where silos withhold some."""
_IN_TABLE = {
    *("did-not-answer", "did-not-evaluate", "withheld", "disclosed", "rounds-not-applied", "replies-rejected"),
    *("withheld-totals", "gone-late"),
}
"""Kinds of notes that the silos' table and its sentences cover, with more detail."""
MAX_TROUBLES = 6
"""Different troubles of one silo that are named."""


@dataclass(frozen=True)
class Trouble:
    """What kept coming back at one silo in one exchange."""

    phase: str
    reason: str
    rounds: tuple[int, ...]
    """0 is before the first."""

    def __str__(self) -> str:
        return f"{when(self.rounds)}: {wording.plain(self.reason, 200)}"


@dataclass(frozen=True)
class Silo:
    name: str
    joined: bool
    rows: int | None
    """Training rows; None if it never joined, or did not disclose them."""
    test_rows: int | None
    missed: tuple[Trouble, ...]
    """Where nothing came back."""
    late: tuple[Trouble, ...]
    """Where a masked reply came, which is in the sum, and no help to unmask it."""
    refused: tuple[Trouble, ...]
    """Where a reply came and could not be used."""
    counts: tuple[str, ...]
    """Groups for which it withholds how right its predictions are."""
    predicted: tuple[str, ...]
    """Groups for which it withholds even what they are."""
    unmeasured: str
    """Why it did not evaluate the last model; empty where it did."""

    @property
    def absence(self) -> str:
        """When it did not answer, and why."""
        if not self.joined:
            reasons = dict.fromkeys(filter(None, [*(trouble.reason for trouble in self.missed), self.unmeasured]))
            return _several([f"never joined: {wording.plain(reason, 200)}" for reason in reasons])
        last = [f"the last evaluation: {wording.plain(self.unmeasured, 200)}"] if self.unmeasured else []
        return _several([*map(str, self.missed), *(f"unmasking {trouble}" for trouble in self.late), *last])

    @property
    def counted(self) -> tuple[str, str]:
        """Its training and test rows."""
        missing = "not disclosed" if self.joined else "unknown"
        train, test = (missing if rows is None else f"{rows:,}" for rows in (self.rows, self.test_rows))
        return train, test

    @property
    def refusals(self) -> str:
        return _several([f"{wording.plain(trouble.phase)} {trouble}" for trouble in self.refused])

    @property
    def withholds(self) -> str:
        withheld = {"how right its predictions are": self.counts, "what they are": self.predicted}
        return "; ".join(f"{what} for {wording.listing(list(of))}" for what, of in withheld.items() if of)

    def facts(self) -> dict[str, Any]:
        """For other programs."""
        return {
            "silo": self.name,
            "train_rows": self.rows,
            "test_rows": self.test_rows,
            "did_not_answer": [{"reason": trouble.reason, "rounds": trouble.rounds} for trouble in self.missed],
            "did_not_unmask": [{"reason": trouble.reason, "rounds": trouble.rounds} for trouble in self.late],
            "did_not_evaluate": self.unmeasured,
            "refused": [vars(trouble) for trouble in self.refused],
            "withheld": {"counts": self.counts, "predicted": self.predicted},
        }

    def numbers(self) -> dict[str, float]:
        """What of it can stand in a table of numbers."""
        return {
            "train_rows": np.nan if self.rows is None else self.rows,
            "test_rows": np.nan if self.test_rows is None else self.test_rows,
            "missed_rounds": len({number for trouble in self.missed for number in trouble.rounds}),
            "refused_replies": sum(len(trouble.rounds) for trouble in self.refused),
            "withheld_groups": len(self.counts),
        }


@dataclass(frozen=True)
class Secure:
    """How the replies of a run were summed without disclosing a single one."""

    least: int
    """Silos that a sum is of at the least."""
    roster: tuple[str, ...]
    """Silos that checked everybody's keys by a roster of their own."""
    before: int
    """How often a silo was gone before it had sent its masked reply,"""
    late: int
    """and how often between that and the unmasking."""
    counts: tuple[str, ...]
    """Groups for which the totals say too little to be disclosed of how right predictions are,"""
    predicted: tuple[str, ...]
    """and of what they are."""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Secure | None:
        """None where the server saw each reply."""
        secure = (info.get("federation") or {}).get("secure")
        return None if secure is None else cls(**{name: _tuple(value) for name, value in secure.items()})

    def sentences(self, members: Sequence[Silo]) -> list[str]:
        """What is promised, who vouches for the keys, and who was missing."""
        joined = [silo.name for silo in members if silo.joined]
        own, others = ([name for name in joined if (name in self.roster) == own] for own in (True, False))
        vouching = "keys vouched for by "
        if not others:
            vouching += "the silos' own roster"
        elif not own:
            vouching += "the server"
        else:
            vouching += f"the silos' own roster at {wording.listing(own)}, by the server at {wording.listing(others)}"
        missing = "No silo was missing, before its masked reply or between that and the unmasking of the sum."
        if self.before or self.late:
            missing = (
                f"In the rounds' exchanges, silos were missing {_times(self.before)} before their masked reply, and "
                f"{_times(self.late)} between that and the unmasking of the sum."
            )
        return [f"{PROMISE.format(least=self.least)}; {vouching}.", missing]


PROMISE = (
    "Secure sums: an operator of the server who reads everything it receives, and who ships equifed's own code, learns "
    "sums over at least {least} silos and who took part, but no single silo's reply, rows or metrics"
)
"""In one sentence what is promised; docs/privacy.md has the rest of it."""
NOT_AVAILABLE = (
    "Replies were summed securely: metrics of single silos (the worst served, the spread between them, their own gaps) "
    "are not available. Each silo has its own in its log."
)


def _times(number: int) -> str:
    return {0: "at no time", 1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class Silos:
    """All silos of one run, and what was agreed between them."""

    members: tuple[Silo, ...]
    rounds: int
    lost: tuple[Note, ...]
    """Rounds that were not applied, and why."""
    min_replies: int
    min_count: int
    disclosed: dict[str, int]
    """By group, the test rows whose labels and predictions are disclosed."""
    test_rows: int
    """Of all silos."""
    secure: Secure | None
    """How replies were summed; None where the server saw each."""

    @classmethod
    def of(cls, result: Result) -> Silos | None:
        """None for a simulation."""
        federation = result.info.get("federation")
        if federation is None:
            return None
        members = []
        for name in map(str, result.info["clients"]):
            declared = federation["silos"].get(name, {})
            withheld = federation["withheld"].get(name, {"counts": (), "predicted": ()})
            troubles = result.rejections[result.rejections["client"].astype(str) == name]
            answered = troubles["answered"].astype(bool)
            missed, refused = _troubles(troubles[~answered].assign(phase="")), _troubles(troubles[answered])
            counts, predicted = tuple(withheld["counts"]), tuple(withheld["predicted"])
            joined, rows, tests = name in federation["silos"], declared.get("rows"), declared.get("test_rows")
            unmeasured = federation["unmeasured"].get(name, "")
            late = [note.fields for note in result.notes if note.kind == "gone-late" and note.fields["client"] == name]
            unhelped = _troubles(pd.DataFrame(late, columns=["phase", "reason", "round"]).assign(phase=""))
            members.append(Silo(name, joined, rows, tests, missed, unhelped, refused, counts, predicted, unmeasured))
        lost = tuple(note for note in result.notes if note.kind == "rounds-not-applied")
        min_replies, min_count, disclosed = (federation[name] for name in ("min_replies", "min_count", "disclosed"))
        test_rows, secure = result.info["rows"]["test"], Secure.of(result.info)
        return cls(tuple(members), len(result.log), lost, min_replies, min_count, disclosed, test_rows, secure)

    @property
    def withholding(self) -> list[str]:
        """Who withholds anything."""
        if self.secure is not None:
            return ["the federation"] if self.secure.counts or self.secure.predicted else []
        return [silo.name for silo in self.members if silo.counts or silo.predicted]

    def hides(self, metric: str, *, groups: Iterable[str] | None = None, client: str | None = None) -> bool:
        """True if a silo withholds counts that the metric rests on, of these groups and this client or of all."""
        needs = describe(metric).needs
        if "scores" in needs:  # unknowable: no party has all predictions
            return False
        for each in self.members if self.secure is None else (self.secure,):
            hidden = set(each.counts if "labels" in needs else each.predicted)
            whose = each.name if isinstance(each, Silo) else None
            if client in (None, whose) and hidden and (groups is None or hidden & set(groups)):
                return True
        return False

    def facts(self) -> dict[str, Any]:
        """For other programs."""
        return {
            "rounds": self.rounds,
            "rounds_not_applied": sorted(number for note in self.lost for number in note.fields["rounds"]),
            "min_replies": self.min_replies,
            "min_count": self.min_count,
            "rows_disclosed": self.disclosed,
            "secure": None if self.secure is None else vars(self.secure),
            "silos": [silo.facts() for silo in self.members],
        }

    def sentences(self) -> list[str]:
        """What holds for all of them."""
        sentences = [] if self.secure is None else self.secure.sentences(self.members)
        sentences += self.lost_rounds() or [
            f"All {self.rounds} rounds were applied: at least {self._fewest} came in each ({self._by})."
        ]
        if self.withholding and self.secure is not None:
            sentences.append(
                f"Counts of all silos' test rows together are withheld below {self.min_count} (min-count, the highest "
                f"that a silo asks for). {self.basis()}"
            )
        elif self.withholding:
            sentences.append(
                f"A silo withholds counts of its test rows below {self.min_count} (min-count), or below a higher limit "
                f"of its own. {self.basis()}"
            )
        elif self.min_count:
            limit = f"{self.min_count} (min-count)"
            sentences.append(f"Counts of test rows below {limit} would be withheld; there were none.")
        else:
            sentences.append("No count of test rows is withheld (min-count is 0).")
        return sentences

    @property
    def _fewest(self) -> str:
        least = self.min_replies if self.secure is None else max(self.min_replies, self.secure.least)
        return f"{least} usable repl{'y' if least == 1 else 'ies'}"

    @property
    def _by(self) -> str:
        """What says how many replies a round needs."""
        return "min-replies" if self.secure is None else "the threshold of secure sums, min-replies"

    def lost_rounds(self) -> list[str]:
        """Which rounds were not applied, a sentence for each reason."""
        sentences = []
        for note in self.lost:
            rounds, obstacle = note.fields["rounds"], Note.from_json(note.fields["obstacle"])
            few = obstacle.kind == "too-few-replies"
            reason = f"fewer than {self._fewest} came ({self._by})" if few else wording.plain(str(obstacle), 200)
            one = len(rounds) == 1
            sentences.append(
                f"{len(rounds)} of {self.rounds} rounds {'was' if one else 'were'} not applied "
                f"(round{'s' * (not one)} {ranges(rounds)}): {reason}."
            )
        return sentences

    def basis(self) -> str:
        """What accuracy and error rates rest on."""
        return str(Note("disclosed", {"rows": sum(self.disclosed.values()), "of": self.test_rows}))


def as_disclosed(groups: pd.DataFrame, silos: Silos | None) -> pd.DataFrame:
    """Values of groups (seed, name, metric, value) with the rows that are disclosed beside them, and nan where a sum is
    0 only because it is withheld everywhere."""
    if silos is None or not silos.withholding:
        return groups
    groups = groups.astype({"metric": str})
    rows = groups[groups["metric"] == "count"]
    disclosed = rows.assign(metric=DISCLOSED, value=[float(silos.disclosed[name]) for name in rows["name"]])
    both = pd.concat([groups, disclosed], ignore_index=True)
    hidden = [name for name, rows in silos.disclosed.items() if not rows and silos.hides("positives", groups=[name])]
    unseen = [name for name in silos.disclosed if silos.hides("count", groups=[name])]
    nothing = both["name"].isin(hidden) & (both["metric"] == "positives")
    nothing |= both["name"].isin(unseen) & (both["metric"] == "count") & (both["value"] == 0)
    both.loc[nothing, "value"] = np.nan
    return both


def other_notes(result: Result) -> list[Note]:
    """A result's notes without those that the silos' table covers, where there is one."""
    covered = _IN_TABLE if "federation" in result.info else set()
    return [note for note in result.notes if note.kind not in covered]


def _troubles(lines: pd.DataFrame) -> tuple[Trouble, ...]:
    rounds: dict[tuple[str, str], set[int]] = {}
    for phase, reason, number in zip(lines["phase"], lines["reason"], lines["round"], strict=True):
        rounds.setdefault((str(phase), str(reason)), set()).add(int(number))
    return tuple(Trouble(*key, tuple(sorted(numbers))) for key, numbers in rounds.items())


def _several(texts: Sequence[str]) -> str:
    more = [f"{len(texts) - MAX_TROUBLES} more"] if len(texts) > MAX_TROUBLES else []
    return "; ".join([*texts[:MAX_TROUBLES], *more])
