"""The engine whose clients are elsewhere, and the evaluation that rides along with its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from equifed import tree
from equifed.flower import evaluation
from equifed.flower.agreement import Scaling, action, codecs
from equifed.flower.evaluation import Withheld, together, withheld_by
from equifed.flower.link import Link, Request
from equifed.flower.memory import MOST_PHASES, exchange_number
from equifed.flower.records import ABOUT, EVALUATION, FIELDS, SCALING, BadMessage, about, pack, read_about, unpack
from equifed.metrics.scored import Scored
from equifed.notes import Note
from equifed.protocol import LIMITS, ROWS, STAGES, Phase, Record, Stage
from equifed.simulator.engine import (
    Exchange,
    Message,
    Rejection,
    State,
    data_of,
    initial_state,
    record_message,
    validation_data,
)
from equifed.simulator.evaluate import Evaluator
from equifed.simulator.job import Job
from equifed.simulator.reference import Reference, finite, gather
from equifed.simulator.tables import Tables

LATE = "was not here in the exchanges before round 1, which the method needs"


class FlowerEngine:
    """Carries out exchanges with silos. One run; what clients remember stays with them, and the state's `clients` says
    only from which exchange each of them is to go on."""

    def __init__(
        self, job: Job, tables: Tables, link: Link, scaling: Scaling | None, deadline: float, min_replies: int
    ) -> None:
        self.job, self.link, self.deadline, self.min_replies = job, link, deadline, min_replies
        self.messages: dict[tuple[str, int], Message] = {}
        self.notes: list[Note] = []
        self.committed: Tensor = torch.zeros(job.task.num_clients, dtype=torch.int64)
        """What the last checkpoint says of the clients: they must not forget it."""
        self.measured: dict[int, tuple[State, list[Scored | None]]] = {}
        """What clients counted of a round's model, until it is asked for: the round's state, and the counts."""
        self.unmeasured: dict[str, str] = {}
        """Why clients did not count with the last model."""
        self._ids = job.runs[0].federation.ids
        self._codecs = codecs(job.method)
        self._scaling = None if scaling is None else _as_record(scaling)
        self._like = _replies(job, tables)
        validation = validation_data(job, tables)
        self._validation = None if validation is None else validation[0]

    def start(self) -> State:
        servers = initial_state(self.job).server
        return State(servers, torch.zeros(1, self.job.task.num_clients, dtype=torch.int64))

    def exchange(
        self, state: State, stage: Stage, position: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> Exchange:
        phase = self.job.phases(stage)[position]
        server, kept = tree.take(state.server, 0), state.clients[0]
        sampled = [int(k) for k in cohorts[0][present[0]]]
        late = self._late(kept) if stage != "setup" else {}
        cohort = [k for k in sampled if self._ids[k] not in late]
        before = round - 1 if stage == "round" and position == 0 and self._evaluates(round - 1) else None
        if stage == "round" and position == 0:
            self.link.welcome(min(self.deadline, 60.0))
        if not sampled and before is None:
            return Exchange(state, present, [])
        method = self.job.method
        down = method.sent(server, phase.down)
        model = method.sent(server, method.predicts_with) if before is not None else {}
        number = exchange_number(round, stage, position)
        train = pack(down | model, self._codecs)
        kind, riding = f"train.{action(stage, phase)}", before is not None
        requests = {self._ids[k]: Request(kind, self._request(train, kept, k, number, round, riding)) for k in cohort}
        if before is not None:
            others = [k for k in range(len(self._ids)) if self._ids[k] not in requests and self._ids[k] not in late]
            requests |= self._evaluation_requests(model, kept, others, number, round)
        answers = self.link.ask(requests, self.deadline) | late
        if before is not None:
            found, rejections = self._evaluations(answers, number, {self._ids[k] for k in cohort})
            self.measured[before] = state, found
        else:
            rejections = []
        replies: dict[int, Record] = {}
        like = self._like[stage, position]
        self.messages.setdefault((stage, position), record_message(stage, phase, down, like, 0))
        for k in sampled:
            try:
                replies[k] = self._reply(answers[self._ids[k]], phase, down, like, k, number)
            except BadMessage as error:
                answered = not isinstance(answers[self._ids[k]], str)
                rejections.append(Rejection(0, self._ids[k], phase.name, str(error), answered))
        there = present & np.isin(cohorts, list(replies))
        if len(replies) < min(self.min_replies, len(self._ids)) or not sampled:
            return Exchange(state, there, rejections, Note("too-few-replies") if sampled else None)
        who = np.array([k for k in sampled if k in replies])
        moved = [tree.map(lambda leaf: leaf.to(self.job.device), replies[int(k)]) for k in who]
        gathered = gather(self.job, phase, moved, who)
        try:
            server = phase.server(server, gathered.replies, data_of(self._validation, self.job))
        except Exception as error:  # replies that are each possible, and together are not
            failed = {"phase": phase.name, "error": f"{type(error).__name__}: {error}"}
            return Exchange(state, there, rejections, Note("server-step-failed", failed))
        if not finite(method.sent(server, method.predicts_with)):
            return Exchange(state, there, rejections, Note("model-not-finite", {"phase": phase.name}))
        kept = kept.clone()
        kept[torch.from_numpy(who)] = number
        clipped = None if gathered.clipped is None else gathered.clipped[None].cpu().numpy()
        state = State(tree.map(lambda leaf: leaf.unsqueeze(0), server), kept[None])
        return Exchange(state, there, rejections, clipped=clipped)

    def evaluate(self, state: State, round: int) -> list[Scored | None]:
        """Ask everyone for what it counts with the model of this state."""
        server, kept = tree.take(state.server, 0), state.clients[0]
        number = exchange_number(round, "final", MOST_PHASES - 1)
        model = self.job.method.sent(server, self.job.method.predicts_with)
        late = self._late(kept)
        asked = [k for k in range(len(self._ids)) if self._ids[k] not in late]
        requests = self._evaluation_requests(model, kept, asked, number, round)
        self.messages.setdefault(("evaluate", 0), self._evaluation_message(model))
        answers = self.link.ask(requests, self.deadline) | late
        found, refused = self._evaluations(answers, number, set())
        self.unmeasured = {each.client: each.reason for each in refused}
        self.unmeasured |= {silo: answer for silo, answer in answers.items() if isinstance(answer, str)}
        for silo, why in self.unmeasured.items():
            self.note("did-not-evaluate", client=silo, round=round, reason=why)
        return found

    def _late(self, kept: Tensor) -> dict[str, str]:
        """Silos that missed setup: what it tells them, or the server of them, cannot be made good later."""
        count = len(self.job.phases("setup"))
        ready = exchange_number(0, "setup", count - 1) if count else 0
        here = self.link.here
        late = [silo for k, silo in enumerate(self._ids) if kept[k] < ready]
        return {silo: LATE if silo in here else self.link.why_not(silo) for silo in late}

    def note(self, kind: str, **fields: Any) -> None:
        note = Note(kind, fields)
        if note not in self.notes:
            self.notes.append(note)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _evaluates(self, round: int) -> bool:
        return round >= 1 and round % self.job.settings.eval_every == 0

    def _request(
        self, fields: ArrayRecord, kept: Tensor, k: int, number: int, round: int, evaluate: bool = False
    ) -> RecordDict:
        said: dict[str, str | int] = {
            "run": self.link.run,
            "exchange": str(number),
            "round": round,
            "from": int(kept[k]),
            "keep": int(self.committed[k]),
            "evaluate": int(evaluate),
        }
        content = RecordDict({ABOUT: about(said), FIELDS: fields})
        if self._scaling is not None:
            content[SCALING] = self._scaling
        return content

    def _evaluation_requests(
        self, model: Record, kept: Tensor, clients: Sequence[int], number: int, round: int
    ) -> dict[str, Request]:
        packed = pack(model, self._codecs)
        return {
            self._ids[k]: Request("evaluate.counts", self._request(packed, kept, k, number, round)) for k in clients
        }

    def _evaluation_message(self, model: Record) -> Message:
        names = tuple(model)
        phase = Phase("counts", names, evaluation.FIELDS, _nothing, _nothing, codecs=self._codecs)  # type: ignore[arg-type]
        return record_message("evaluate", phase, model, evaluation.like(self.job.task), 0)

    # -- replies -------------------------------------------------------------------------------------------------------

    def _reply(self, answer: RecordDict | str, phase: Phase, down: Record, like: Record, k: int, number: int) -> Record:
        content = _checked(answer, self._ids[k], number)
        reply = unpack(content, FIELDS, like, self._codecs)
        rows = self.link.members[self._ids[k]].rows
        for name, (low, high) in ({**LIMITS, **phase.limits}).items():
            for leaf in tree.leaves(reply[name]) if name in reply else ():
                most, what = (rows, ", the rows that it declared") if high == ROWS else (high, "")
                if (leaf < low).any() or (leaf > most).any():
                    raise BadMessage(f"has {name} outside {low:g} to {most:g}{what}")
        channel = self.job.channel
        too_long = channel.too_long(phase, tree.map(lambda leaf: leaf.cpu(), down), reply)
        if too_long:
            raise BadMessage(f"has in {too_long} an update of a norm above {channel.clip:g}, to which it is clipped")
        return reply

    def _evaluations(
        self, answers: Mapping[str, RecordDict | str], number: int, training: set[str]
    ) -> tuple[list[Scored | None], list[Rejection]]:
        """Every client's scores, None where there are none, and the evaluations that were refused; whose whole answer
        is refused in training is not named twice."""
        found: list[Scored | None] = []
        refused = []
        for silo in self._ids:
            answer, readable = answers[silo], False
            try:
                content = _checked(answer, silo, number)
                readable = True
                found.append(evaluation.read(content, self.job.task, self.link.members[silo].test_rows))
            except BadMessage as error:
                found.append(None)
                if not isinstance(answer, str) and (readable or silo not in training):
                    refused.append(Rejection(0, silo, EVALUATION, str(error)))
        return found, refused


def _replies(job: Job, tables: Tables) -> dict[tuple[str, int], Record]:
    """A reply of the right names, shapes and types in every phase: what a client without rows would say."""
    found: dict[tuple[str, int], Record] = {}
    silo = Reference(job, tables)
    server = tree.take(initial_state(job).server, 0)
    state = tree.map(lambda leaf: leaf.to(job.device), job.method.init_client(job.task, job.initial[0]))
    with torch.no_grad():
        for stage in STAGES:
            for position, phase in enumerate(job.phases(stage)):
                found[stage, position], state = silo.work(phase, job.method.sent(server, phase.down), state, 0, 0, 0)
    return found


def _nothing(*_: object) -> None:
    """An evaluation is no phase of a method."""


def _checked(answer: RecordDict | str, silo: str, number: int) -> RecordDict:
    """An answer's content, refused unless it is this silo's to this exchange."""
    if isinstance(answer, str):
        raise BadMessage(answer)
    said = read_about(answer)
    if "refused" in said:
        raise BadMessage(str(said["refused"]))
    if said.get("client") != silo:
        raise BadMessage(f"is signed by {said.get('client')!r}")
    if said.get("exchange") != str(number):
        raise BadMessage("belongs to another exchange")
    return answer


def _as_record(scaling: Scaling) -> ArrayRecord:
    return ArrayRecord({"shift": Array(scaling[0]), "factor": Array(scaling[1])})


class FlowerEvaluator:
    """Scores from what clients counted: a round's model is measured when the next round brings it to them, that of the
    last round by a message of its own."""

    def __init__(self, job: Job, tables: Tables, engine: FlowerEngine) -> None:
        self.job, self.engine = job, engine
        self._local = Evaluator(job, tables)
        self.withheld: list[Withheld] = []
        """What clients withheld in the last evaluation."""
        self.disclosed: np.ndarray | None = None
        """Test rows of each group whose labels and predictions were told in it; None before it."""

    def measured(self, number: int, state: State, running: np.ndarray) -> dict[int, list[dict[str, Scored]]]:
        scores = {round: [self._scores(*counted)] for round, counted in self.engine.measured.items()}
        self.engine.measured.clear()
        if not running.any():
            found = self.engine.evaluate(state, number)
            scores[number] = [self._scores(state, found)]
            self._tell(found)
        return scores

    def _scores(self, state: State, found: list[Scored | None]) -> dict[str, Scored]:
        scores = together(found, self.job.task)
        fed = self.job.runs[0].federation
        # clients' own models are not here to be tried on the server's rows
        if len(fed.validation) and not self.job.method.personal:
            server = tree.take(state.server, 0)
            scores["validation"] = self._local.common(server, fed.validation)
        return scores

    def _tell(self, found: list[Scored | None]) -> None:
        """Say at the end what is withheld, and how many rows the figures rest on."""
        fed = self.job.runs[0].federation
        self.withheld = withheld_by(found, fed.ids)
        self.disclosed = np.zeros(self.job.task.num_groups, dtype=np.int64)
        for each in found:
            if each is not None:
                self.disclosed += np.nansum(each.counts[0], (-2, -1)).astype(np.int64)
        for client, counts, predicted in self.withheld:
            hidden = {"counts": counts, "predicted": predicted}
            names = {what: [fed.groups[g] for g in groups] for what, groups in hidden.items()}
            self.engine.note("withheld", client=client, **names)
        if self.withheld:
            rows = sum(member.test_rows for member in self.engine.link.members.values())
            self.engine.note("disclosed", rows=int(self.disclosed.sum()), of=rows)
