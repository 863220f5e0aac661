"""The engine of a real federation with secure sums, which hide single replies from it.

Every exchange is in the run's journal before the next one begins, also one in which silos only confirm that they took
part: a resumed run has the same outcome as the killed one, also if other silos are connected now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict

from equifed import tree
from equifed.flower import evaluation
from equifed.flower.agreement import Scaling, action
from equifed.flower.engine import FlowerEngine, FlowerEvaluator
from equifed.flower.evaluation import list_withheld
from equifed.flower.journal import Journal
from equifed.flower.link import Link
from equifed.flower.masks import STATES, joined
from equifed.flower.memory import evaluation_number, exchange_number
from equifed.flower.records import EVALUATION, BadMessage, pack
from equifed.flower.sums import Question, Refusal, Sum, sum_replies
from equifed.flower.vectors import Vector
from equifed.metrics.scored import Scored
from equifed.notes import Note
from equifed.protocol import Phase, Record, Stage
from equifed.simulator import Job, Rejection, State, Tables
from equifed.simulator.engine import ExchangeResult, bounds_of, record_message, sent
from equifed.simulator.reference import Seen


class _Asked(NamedTuple):
    """One exchange of a phase, as requested from the silos."""

    stage: Stage
    position: int
    phase: Phase
    round: int
    number: int
    kind: str
    down: Record
    sampled: list[int]
    measures: bool
    """True if the previous round's model is evaluated with it."""


class SecureEngine(FlowerEngine):
    """An engine that receives masked replies and unmasks only their sum."""

    def __init__(
        self,
        job: Job,
        tables: Tables,
        link: Link,
        scaling: Scaling | None,
        deadline: float,
        min_replies: int,
        journal: Journal,
    ) -> None:
        super().__init__(job, tables, link, scaling, deadline, min_replies)
        self.journal = journal

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> ExchangeResult:
        phase, begins = self.job.phases(stage)[position], stage == "round" and step == 0
        sampled = [int(k) for k in cohorts[0][present[0]]]
        if begins:
            self.link.welcome(min(self.deadline, 60.0))
        # the previous round's model is evaluated within this exchange's vector if all silos take part in it
        measures = begins and round > 1 and (round - 1) % self.job.settings.eval_every == 0
        together = len(sampled) == len(self._ids) and self.job.channel.is_hidden(phase)
        if measures and not together:
            self.measured[round - 1] = state, self.evaluate(state, round - 1)
        if not sampled:
            return ExchangeResult(state, present, [])
        down = sent(self.job.method, tree.take(state.server, 0), self._validation, phase.down)
        message = record_message(self.job, stage, phase, down, self._like[stage, position])
        self.messages.setdefault((stage, position), message)
        number, kind = exchange_number(round, stage, step), f"train.{action(stage, phase)}"
        asked = _Asked(stage, position, phase, round, number, kind, down, sampled, measures and together)
        take = self._take_sum if self.job.channel.is_hidden(phase) else self._take_part
        return take(state, asked, cohorts, present)

    def _take_sum(self, state: State, asked: _Asked, cohorts: np.ndarray, present: np.ndarray) -> ExchangeResult:
        phase, cohort = asked.phase, [self._ids[k] for k in cohorts[0]]
        absent = self._find_absent(state, asked.round, cohort)
        vector = Vector(asked.kind, self._like[asked.stage, asked.position], phase.places)
        there = {self._ids[k]: k for k in asked.sampled if self._ids[k] not in absent}
        model = self._model(state) if asked.measures else {}
        layouts = [vector.layout, *([evaluation.layout_of(self.job.task)] if asked.measures else [])]
        question = Question(
            asked.number,
            asked.kind,
            self._alike(state, {**asked.down, **model}),
            tuple(sorted(set(cohort) - absent.keys())),
            len(cohort),
            {silo: self._make_about(state, asked.round, asked.number, asked.measures, k) for silo, k in there.items()},
            joined(layouts),
            vector.size + (evaluation.size(self.job.task) if asked.measures else 0),
            {self._ids[k]: absent[self._ids[k]] for k in asked.sampled if self._ids[k] in absent},
        )
        done = sum_replies(
            self.link, self.journal, question, self.deadline, self.min_replies, again=asked.stage != "round"
        )
        self._note_done(done, asked.round, phase.name)
        if asked.measures:
            self.measured[asked.round - 1] = state, [self._decode_scores(done, vector.size, asked.round - 1)]
        clients = np.array([k for k in asked.sampled if self._ids[k] in done.used], dtype=np.int64)
        refused = [Rejection(0, silo, phase.name, *why) for silo, why in done.refused.items()]
        exchange = ExchangeResult(state, present & np.isin(cohorts, clients), refused)
        if done.total is None:
            assert done.obstacle is not None
            return replace(exchange, obstacles={0: done.obstacle})
        total, rows = vector.decode(done.total), self.link.totals.rows
        down = tree.map(lambda leaf: leaf.cpu(), asked.down)
        wrong = bounds_of(self.job, asked.stage, asked.position).find_impossible(down, total, len(clients), rows)
        if wrong:
            return replace(exchange, obstacles={0: Note("impossible-sum", {"phase": phase.name, "field": wrong})})
        here = tree.map(lambda leaf: leaf.to(self.job.device), total)
        count = torch.tensor(float(len(clients)), device=self.job.device)
        seen = Seen(self.job.channel.gather_sums(here, count), np.full(len(clients), np.nan), None)
        exchange = replace(exchange, late=np.array([len(done.late)]))
        return self._apply_step(phase, asked.number, clients, lambda: seen, exchange)

    def _alike(self, state: State, fields: Record) -> RecordDict:
        """Return the part of a message that is the same for all silos, with the exchange from which each continues, so
        that a silo can check the server's claim."""
        last = zip(self._ids, state.last_reply[0].tolist(), strict=True)
        return RecordDict({**self._make_content(pack(fields, self._codecs)), STATES: ConfigRecord(dict(last))})

    def _find_absent(self, state: State, round: int, cohort: Sequence[str]) -> dict[str, Refusal]:
        """Return the silos of the cohort that cannot be in a sum, with the reason."""
        why = {silo: self.link.why_not(silo) for silo in cohort if silo not in self.link.members}
        why |= self._find_late(state) if round else {}
        return {silo: Refusal(why[silo], answered=False) for silo in cohort if silo in why}

    def evaluate(self, state: State, round: int) -> list[Scored | None]:
        """Sum all silos' counts with this state's model securely; return the joint scores as those of one client."""
        number, absent = evaluation_number(round), self._find_absent(state, round, self._ids)
        there = {silo: k for k, silo in enumerate(self._ids) if silo not in absent}
        question = Question(
            number,
            "evaluate.counts",
            self._alike(state, self._model(state)),
            tuple(sorted(there)),
            len(self._ids),
            {silo: self._make_about(state, round, number, True, k) for silo, k in there.items()},
            evaluation.layout_of(self.job.task),
            evaluation.size(self.job.task),
            absent,
        )
        done = sum_replies(self.link, self.journal, question, self.deadline)
        self._note_done(done, round, EVALUATION)
        like = {name: torch.zeros(shape, dtype=torch.int64) for name, _, shape, _ in evaluation.parts(self.job.task)}
        self._record_evaluation(state, like, "sum")
        self._note_unmeasured(round, {silo: why.reason for silo, why in done.refused.items()})
        return [self._decode_scores(done, 0, round)]

    def _decode_scores(self, done: Sum, begin: int, round: int) -> Scored | None:
        """Decode the joint scores from a sum's integers from position `begin` on; None if there is no usable sum."""
        obstacle = done.obstacle
        if done.total is not None:
            limit = max(member.min_count for member in self.link.members.values())
            try:
                rows = self.link.totals.test_rows
                return evaluation.decode_total(done.total[begin:], self.job.task, rows, limit)
            except BadMessage:
                obstacle = Note("impossible-sum", {"phase": EVALUATION, "field": "counts"})
        assert obstacle is not None
        self.note("not-evaluated", round=round, obstacle=obstacle.to_json())
        return None

    def _note_done(self, done: Sum, round: int, phase: str) -> None:
        """Note silos that answered but did not help to unmask, or sent false shares."""
        for silo in done.liars:
            self.note("false-shares", client=silo, rounds=[round])
        for silo, why in done.late.items():
            self.note("gone-late", client=silo, round=round, phase=phase, reason=why.reason)

    def _take_part(self, state: State, asked: _Asked, cohorts: np.ndarray, present: np.ndarray) -> ExchangeResult:
        """Carry out a phase with empty replies, which only confirm that a silo took part."""
        phase, like = asked.phase, self._like[asked.stage, asked.position]
        entry = self.journal.read(asked.number)
        if entry is not None:
            refused = [Rejection(*each) for each in entry.facts["refused"]]
            replies: dict[int, Record] = dict.fromkeys(entry.facts["used"], like)
        else:
            answers = self._ask(state, asked.round, asked.number, False, asked.kind, asked.sampled, asked.down)
            bounds = bounds_of(self.job, asked.stage, asked.position)
            replies, refused = self._read_replies(answers, phase, bounds, asked.down, like, asked.sampled)
        exchange = ExchangeResult(state, present & np.isin(cohorts, list(replies)), refused)
        exchange = self._step_on_replies(asked.stage, phase, asked.number, replies, exchange)
        if entry is None and (not exchange.obstacles or asked.stage == "round"):
            self.journal.write(asked.number, "done", {"used": list(replies), "refused": refused}, {})
        return exchange


class SecureEvaluator(FlowerEvaluator):
    """An evaluator of all clients together; a single client's scores stay secret."""

    hidden: dict[str, list[str]]
    """Groups with withheld totals, as in `withheld`."""

    def _combine_scores(self, state: State, counted: list[Scored | None]) -> dict[str, Scored]:
        scores = super()._combine_scores(state, counted)
        del scores["clients"]
        return scores

    def recall(self, number: int, state: State, scores: Mapping[str, Scored]) -> None:
        # silos do not unmask a sum twice: its outcome is in the scores and the notes
        of_it = [note for note in self.engine.notes if note.fields.get("round") == number]
        missing = [note.fields for note in of_it if note.kind == "did-not-evaluate"]
        self.engine.unmeasured = {fields["client"]: fields["reason"] for fields in missing}
        self._note([None if any(note.kind == "not-evaluated" for note in of_it) else scores["test"]])

    def _note_withheld(self, counted: list[Scored | None]) -> bool:
        everyone = list_withheld(counted, ("everyone",))
        self.hidden = self._name_groups(*(everyone[0][1:] if everyone else ((), ())))
        if everyone:
            self.engine.note("withheld-totals", **self.hidden)
        return bool(everyone)
