"""The engine of a real federation, and the evaluation that travels with its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from equifed import tree
from equifed.bounds import Bounds, is_finite, unbounded_fields
from equifed.flower import evaluation
from equifed.flower.agreement import Scaling, action, codecs
from equifed.flower.evaluation import combine, list_withheld
from equifed.flower.link import Link, NoAnswer, SiloRequest, check_answer
from equifed.flower.memory import evaluation_number, exchange_number
from equifed.flower.records import (
    ABOUT,
    EVALUATION,
    FIELDS,
    SCALING,
    BadMessage,
    about,
    distrusting,
    pack,
    unpack,
)
from equifed.metrics.scored import Scored
from equifed.notes import Note
from equifed.protocol import STAGES, Phase, Record, Stage
from equifed.simulator import Evaluator, Job, Message, Reference, Rejection, State, Tables, gather
from equifed.simulator.engine import (
    ExchangeResult,
    bounds_of,
    data_of,
    initial_state,
    record_message,
    sent,
    validation_data,
)
from equifed.simulator.reference import Seen
from equifed.tree import Tree
from equifed.words import clean

LATE = "missed the exchanges before round 1, which the method needs"


class FlowerEngine:
    """An engine that carries out one run's exchanges with silos. Client state stays at the silos."""

    def __init__(
        self, job: Job, tables: Tables, link: Link, scaling: Scaling | None, deadline: float, min_replies: int
    ) -> None:
        self.job, self.link, self.deadline, self.min_replies = job, link, deadline, min_replies
        self.messages: dict[tuple[str, int], Message] = {}
        self.notes: list[Note] = []
        self.committed: Tensor = torch.zeros(job.task.num_clients, dtype=torch.int64)
        """`State.last_reply` of the last checkpoint: clients must keep the states they had then."""
        self.measured: dict[int, tuple[State, list[Scored | None]]] = {}
        """By round, the state and the clients' counts with its model, until the evaluator collects them."""
        self.unmeasured: dict[str, str] = {}
        """By client that did not evaluate the last model, the reason."""
        self._ids = job.runs[0].federation.ids
        self._codecs = codecs(job.method)
        self._travels = _list_sent_fields(job)
        self._scaling = scaling and ArrayRecord({"shift": Array(scaling[0]), "factor": Array(scaling[1])})
        self._validation = tree.take(validation_data(job, tables), 0)
        self._like = _make_example_replies(job, tables, self._validation)
        for phase in (phase for stage in STAGES for phase in job.phases(stage)):
            if fields := unbounded_fields(phase):
                self.note("unbounded", phase=phase.name, fields=fields)

    def start(self) -> State:
        never = torch.zeros(1, self.job.task.num_clients, dtype=torch.int64)
        return State(initial_state(self.job).server, clients=(), last_reply=never)

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> ExchangeResult:
        phase, begins = self.job.phases(stage)[position], stage == "round" and step == 0
        if begins:
            self.link.welcome(min(self.deadline, 60.0))
        # the model of the previous round is evaluated with the first messages of this one
        measures = begins and round > 1 and (round - 1) % self.job.settings.eval_every == 0
        sampled = [int(k) for k in cohorts[0][present[0]]]
        if not sampled and not measures:
            return ExchangeResult(state, present, [])
        number, kind = exchange_number(round, stage, step), f"train.{action(stage, phase)}"
        down = sent(self.job.method, tree.take(state.server, 0), self._validation, phase.down)
        answers = self._ask(state, round, number, measures, kind, sampled, down)
        rejections: list[Rejection] = []
        if measures:
            counted, problems = self._read_evaluations(answers)
            self.measured[round - 1] = state, counted
            trained = {self._ids[k] for k in sampled}
            rejections = [
                Rejection(0, silo, EVALUATION, str(problem))
                for silo, problem in problems.items()
                # an unreadable answer is reported once, below, as a training reply
                if not (isinstance(problem, NoAnswer) or (problem is answers[silo] and silo in trained))
            ]
        like = self._like[stage, position]
        message = record_message(self.job, stage, phase, down, like)
        self.messages.setdefault((stage, position), message)
        replies, refused = self._read_replies(answers, phase, bounds_of(self.job, stage, position), down, like, sampled)
        used = present & np.isin(cohorts, list(replies))
        exchange = ExchangeResult(state, used, rejections + refused)
        return self._step_on_replies(stage, phase, number, replies, exchange) if sampled else exchange

    def _step_on_replies(
        self, stage: Stage, phase: Phase, number: int, replies: Mapping[int, Record], exchange: ExchangeResult
    ) -> ExchangeResult:
        """Apply the server's step to single replies, if there are enough of them."""
        if len(replies) < min(self.min_replies, len(self._ids)):
            return replace(exchange, obstacles={0: Note("too-few-replies")})
        moved = [tree.map(lambda leaf: leaf.to(self.job.device), reply) for reply in replies.values()]
        clients = np.array(list(replies))
        down = sent(self.job.method, tree.take(exchange.state.server, 0), self._validation, phase.down)
        seen = partial(gather, self.job, stage, phase, down, moved, clients)
        return self._apply_step(phase, number, clients, seen, exchange)

    def _apply_step(
        self, phase: Phase, number: int, clients: np.ndarray, seen: Callable[[], Seen], exchange: ExchangeResult
    ) -> ExchangeResult:
        """Apply the server's step to the gathered replies that `seen` returns, or record the obstacle."""
        state, method = exchange.state, self.job.method
        try:
            gathered, cut, obstacle = seen()
            if obstacle is not None:
                return replace(exchange, obstacles={0: obstacle})
            server = phase.server(tree.take(state.server, 0), gathered.replies, data_of(self._validation, self.job))
        except Exception as error:  # each reply is possible, their combination is not
            failed = {"phase": phase.name, "error": clean(f"{type(error).__name__}: {error}")}
            return replace(exchange, obstacles={0: Note("server-step-failed", failed)})
        if not is_finite(sent(method, server, self._validation, self._travels)):
            return replace(exchange, obstacles={0: Note("model-not-finite", {"phase": phase.name})})
        last = state.last_reply.clone()
        last[0, torch.from_numpy(clients)] = number
        stepped = State(tree.map(lambda leaf: leaf.unsqueeze(0), server), clients=(), last_reply=last)
        clipped = None if gathered.clipped is None else gathered.clipped[None].cpu().numpy()
        return replace(exchange, state=stepped, clipped=clipped, cut=self._collect_cuts(phase, exchange, cut))

    def _collect_cuts(self, phase: Phase, exchange: ExchangeResult, cut: np.ndarray) -> np.ndarray | None:
        """Return the share of each cohort member's update that the robust rule cut [1, K]."""
        if not self.job.channel.has_rule(phase):
            return None
        cuts = np.full(exchange.present.shape, np.nan)
        cuts[exchange.present] = cut
        return cuts

    def evaluate(self, state: State, round: int) -> list[Scored | None]:
        """Ask all clients for their counts with this state's model."""
        answers = self._ask(state, round, evaluation_number(round), evaluate=True)
        counted, problems = self._read_evaluations(answers)
        self._record_evaluation(state, evaluation.like(self.job.task), "stack")
        self._note_unmeasured(round, {silo: str(problem) for silo, problem in problems.items()})
        return counted

    def _record_evaluation(self, state: State, like: Record, gather: Literal["sum", "stack"]) -> None:
        """Record the evaluation in the table of messages, although it is not a phase of the method."""
        down = self._model(state)
        phase = Phase("counts", tuple(down), tuple(like), None, None, gather, codecs=self._codecs)  # type: ignore[arg-type]
        self.messages.setdefault(("evaluate", 0), record_message(self.job, "evaluate", phase, down, like))

    def _note_unmeasured(self, round: int, why: dict[str, str]) -> None:
        self.unmeasured = why
        for silo, reason in why.items():
            self.note("did-not-evaluate", client=silo, round=round, reason=reason)

    def note(self, kind: str, **fields: Any) -> None:
        note = Note(kind, fields)
        if note not in self.notes:
            self.notes.append(note)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _find_late(self, state: State) -> dict[str, str]:
        """Return the silos that missed the setup exchanges, which cannot be repeated, with the reason."""
        count = sum(phase.repeat(self.job.task) for phase in self.job.phases("setup"))
        ready = exchange_number(0, "setup", count - 1) if count else 0
        connected = self.link.here
        late = [silo for silo, last in zip(self._ids, state.last_reply[0], strict=True) if last < ready]
        return {silo: LATE if silo in connected else self.link.why_not(silo) for silo in late}

    def _model(self, state: State) -> Record:
        """Return the fields that clients predict with."""
        return self.job.method.sent(tree.take(state.server, 0), self.job.method.predicts_with)

    def _make_about(self, state: State, round: int, number: int, evaluate: bool, client: int) -> ConfigRecord:
        """Return the record `about` of a message to this client."""
        return about(
            {
                "run": self.link.run,
                "exchange": str(number),
                "round": round,
                "from": int(state.last_reply[0, client]),
                "keep": int(self.committed[client]),
                "evaluate": int(evaluate),
            }
        )

    def _make_content(self, fields: ArrayRecord) -> RecordDict:
        """Return the part of a message that is the same for all clients."""
        sent = RecordDict({FIELDS: fields})
        if self._scaling is not None:
            sent[SCALING] = self._scaling
        return sent

    def _ask(
        self,
        state: State,
        round: int,
        number: int,
        evaluate: bool,
        kind: str = "",
        sampled: Sequence[int] = (),
        down: Mapping[str, Tree] | None = None,
    ) -> dict[str, RecordDict | BadMessage]:
        """Return answers by silo: sampled silos do the work called `kind`; if `evaluate`, all silos evaluate."""
        model = self._model(state) if evaluate else {}
        training, counts = pack({**(down or {}), **model}, self._codecs), pack(model, self._codecs)
        requests = {}
        late = self._find_late(state) if round else {}
        for k in range(len(self._ids)) if evaluate else sampled:
            head, sent = (
                self._make_about(state, round, number, evaluate, k),
                self._make_content(training if k in sampled else counts),
            )
            content = RecordDict({ABOUT: head, **sent})
            requests[self._ids[k]] = SiloRequest(kind if k in sampled else "evaluate.counts", content)
        asked = {silo: request for silo, request in requests.items() if silo not in late}
        answers = {**late, **self.link.ask(asked, self.deadline)}
        return {silo: _open_answer(answers[silo], silo, number) for silo in requests}

    # -- answers -------------------------------------------------------------------------------------------------------

    def _read_replies(
        self,
        answers: Mapping[str, RecordDict | BadMessage],
        phase: Phase,
        bounds: Bounds,
        down: Record,
        like: Record,
        sampled: Sequence[int],
    ) -> tuple[dict[int, Record], list[Rejection]]:
        """Return a phase's replies by client, and rejections for replies that were refused or are missing."""
        replies: dict[int, Record] = {}
        refused = []
        down = tree.map(lambda leaf: leaf.cpu(), down)
        for k in sampled:
            silo = self._ids[k]
            try:
                with distrusting():
                    reply = unpack(_require_readable(answers[silo]), FIELDS, like, self._codecs)
            except BadMessage as error:
                refused.append(Rejection(0, silo, phase.name, str(error), not isinstance(error, NoAnswer)))
            else:
                replies[k] = reply
        rows = {k: self.link.at_most(self._ids[k]).rows for k in replies}
        for k, wrong in bounds.find_refused(down, replies, rows).items():
            refused.append(Rejection(0, self._ids[k], phase.name, wrong))
            del replies[k]
        return replies, refused

    def _read_evaluations(
        self, answers: Mapping[str, RecordDict | BadMessage]
    ) -> tuple[list[Scored | None], dict[str, BadMessage]]:
        """Return every client's scores, None if missing, and the reason by client."""
        counted: list[Scored | None] = []
        problems = {}
        for silo in self._ids:
            try:
                with distrusting():
                    content, rows = _require_readable(answers[silo]), self.link.at_most(silo).test_rows
                    counted.append(evaluation.read(content, self.job.task, rows))
            except BadMessage as error:
                counted.append(None)
                problems[silo] = error
        return counted, problems


def _list_sent_fields(job: Job) -> tuple[str, ...]:
    """Return the server's fields that are ever sent to clients, which must therefore stay finite."""
    phases = [phase for stage in STAGES for phase in job.phases(stage) if phase.repeat(job.task)]
    return tuple(dict.fromkeys([*job.method.predicts_with, *(name for phase in phases for name in phase.down)]))


def _make_example_replies(job: Job, tables: Tables, validation: Tree) -> dict[tuple[str, int], Record]:
    """Return, for every phase, the reply of a client without rows, which has the expected names, shapes and types."""
    found: dict[tuple[str, int], Record] = {}
    silo = Reference(job, tables)
    server = tree.take(initial_state(job).server, 0)
    state = tree.map(lambda leaf: leaf.to(job.device), job.method.init_client(job.task, job.initial[0]))
    with torch.no_grad():
        for stage in STAGES:
            for position, phase in enumerate(job.phases(stage)):
                if not phase.repeat(job.task):
                    continue
                down = sent(job.method, server, validation, phase.down)
                found[stage, position], state = silo.work(phase, down, state, 0, 0, 0)
    return found


def _open_answer(answer: RecordDict | str, silo: str, number: int) -> RecordDict | BadMessage:
    try:
        with distrusting():
            return check_answer(answer, silo, number)
    except BadMessage as error:
        return error


def _require_readable(answer: RecordDict | BadMessage) -> RecordDict:
    if isinstance(answer, BadMessage):
        raise answer
    return answer


class FlowerEvaluator:
    """An evaluator that scores the clients' counts. A round's model is evaluated when the next round sends it to
    them, the last round's by a separate message."""

    def __init__(self, job: Job, tables: Tables, engine: FlowerEngine) -> None:
        self.job, self.engine = job, engine
        self._local = Evaluator(job, tables)
        self.withheld: dict[str, dict[str, list[str]]] = {}
        """By client, the groups for which it withheld labels and predictions in the last evaluation ("counts"), and
        those for which it withheld predicted totals, too ("predicted")."""
        self.disclosed: dict[str, int] | None = None
        """Test rows of each group with disclosed labels and predictions in the last evaluation; None before it."""
        self.unknown = 0
        """The same for rows of unknown group."""

    def measure(self, number: int, state: State, running: np.ndarray) -> dict[int, list[dict[str, Scored]]]:
        scores = {round: [self._combine_scores(*counted)] for round, counted in self.engine.measured.items()}
        self.engine.measured.clear()
        if not running.any():
            counted = self.engine.evaluate(state, number)
            scores[number] = [self._combine_scores(state, counted)]
            self._note(counted)
        return scores

    def recall(self, number: int, state: State, scores: Mapping[str, Scored]) -> None:
        """Restore the evaluation's notes in a resumed run that had finished its last round with these scores."""
        self.measure(number, state, np.zeros(1, dtype=bool))

    def _combine_scores(self, state: State, counted: list[Scored | None]) -> dict[str, Scored]:
        scores = combine(counted, self.job.task)
        fed = self.job.runs[0].federation
        # personal models stay at the clients, so they cannot be evaluated on the server's rows
        if len(fed.validation) and not self.job.method.personal:
            server = tree.take(state.server, 0)
            scores["validation"] = self._local.score_common(server, fed.validation)
        return scores

    def _note(self, counted: list[Scored | None]) -> None:
        """Note at the end which groups are withheld and how many rows the scores rest on."""
        fed = self.job.runs[0].federation
        test = combine(counted, self.job.task)["test"]
        shown = np.nan_to_num(test.counts[0]).sum((-2, -1))
        self.disclosed = dict(zip(fed.groups, shown.astype(int).tolist(), strict=True))
        self.unknown = int(test.unknown.sum())
        total = self.engine.link.totals.test_rows
        if self.unknown:
            self.engine.note("unknown-groups", rows={"test": self.unknown}, of={"test": total})
        if self._note_withheld(counted):
            self.engine.note("disclosed", rows=sum(self.disclosed.values()) + self.unknown, of=total)

    def _note_withheld(self, counted: list[Scored | None]) -> bool:
        """Note withheld groups; return True if there are any."""
        self.withheld = {
            client: self._name_groups(counts, predicted)
            for client, counts, predicted in list_withheld(counted, self.job.runs[0].federation.ids)
        }
        for client, groups in self.withheld.items():
            self.engine.note("withheld", client=client, **groups)
        return bool(self.withheld)

    def _name_groups(self, counts: Sequence[int], predicted: Sequence[int]) -> dict[str, list[str]]:
        names = self.job.runs[0].federation.groups
        return {"counts": [names[g] for g in counts], "predicted": [names[g] for g in predicted]}
