"""A long run of a federation whose silos come, go, lie and stall, by a seeded plan. `test_soak.py` runs a short share
of it, `benchmarks/reliability.py` counts what 200 rounds come to.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import logging
import os
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from flwr.app import Message, RecordDict

import equifed as ef
from equifed import methods
from equifed.config import build, load_federations
from equifed.flower import link
from equifed.flower.agreement import Setting
from equifed.flower.memory import MOST_EXCHANGES, exchange_number
from equifed.protocol import Method, Stage
from equifed.simulation import Training
from equifed.simulator import Evaluator, Reference, State, make_tables
from equifed.simulator.engine import ExchangeResult
from flower.hostile import Attack, of_evaluation, of_joining, of_numbers, of_record, of_words
from flower.inprocess import Nodes, answer, federate, nodes, setting, write_files

PATIENT = {"deadline": 5.0, "join-deadline": 5.0, "min-replies": 1, "min-count": 0}
METHODS: dict[str, Method] = {"fedavg": methods.FedAvg(), "fedem": methods.FedEM()}
"""One whose silos remember nothing, and one whose silos do."""
REPLAY, ANOTHERS = "replay", "another's"
"""Lies that are made of other replies: the silo's own to the last message, and that of the silo before it."""
WARM = 0.4
"""Share of the rounds after which nothing may grow any more."""


@dataclass
class Part:
    """What one silo does in one round."""

    does: str = "answers"
    """answers, late (within the deadline, after two looks), silent, stalls (answers rounds later), lies; gone: it is
    not connected; out: it is, but was not let in."""
    lie: str = ""
    attack: Attack | None = None
    join: str = ""
    """How it answers if it is asked who it is: honestly, with a lie (the name of it), or "stalls"."""
    join_attack: Attack | None = None

    @property
    def trains(self) -> bool:
        """Whether its reply to the training can be used."""
        return self.does in ("answers", "late") or (self.does == "lies" and self.lie.startswith("evaluation: "))

    @property
    def counts(self) -> bool:
        """The same of its evaluation."""
        return self.does in ("answers", "late") or (self.does == "lies" and self.lie.startswith("fields: "))


Plan = list[dict[str, Part]]
"""By round, from 1 on, and silo."""


@dataclass
class Lies:
    """All kinds there are, each told before one is told again."""

    training: list[tuple[str, Attack]]
    evaluation: list[tuple[str, Attack]]
    words: list[tuple[str, Attack]]
    """Whose it is, and to what."""
    joining: list[tuple[str, Attack]]

    @classmethod
    def gather(cls, made: Setting) -> Lies:
        """From what an honest silo answers."""
        seen: dict[str, RecordDict] = {}

        def look(silo: str, message: Message, reply: Message) -> Message:
            if silo == "a":
                seen[message.metadata.message_type] = copy.deepcopy(reply.content)
            return reply

        with tempfile.TemporaryDirectory() as place:
            short = dataclasses.replace(made.config, run=dataclasses.replace(made.config.run, rounds=2))
            honest = Setting(short, made.schema)
            federate(honest, nodes(honest, look), Path(place))
        trained = seen["train.train"]
        evaluations = [(name.removeprefix("evaluation: "), attack) for name, attack in of_evaluation(trained)]
        return cls(
            [*of_record(trained, "fields"), *of_numbers(trained, "fields")],
            [*((f"evaluation: {name}", attack) for name, attack in evaluations)],
            [*of_words(), (REPLAY, _nothing), (ANOTHERS, _nothing)],
            # without sums a silo that is known is let in all the same
            [lie for lie in of_joining(seen["query.join"]) if lie[0] != "fields: no record"],
        )

    def dealt(self, rng: np.random.Generator) -> tuple[Iterator[tuple[str, Attack]], ...]:
        def endless(lies: list[tuple[str, Attack]]) -> Iterator[tuple[str, Attack]]:
            while True:
                for i in rng.permutation(len(lies)):
                    yield lies[i]

        return tuple(map(endless, (self.training, self.evaluation, self.words, self.joining)))


def _nothing(content: RecordDict) -> None: ...


def make_plan(silos: Iterable[str], rounds: int, lies: Lies, rng: np.random.Generator) -> Plan:
    """Everyone is there and honest in the first round."""
    *about, joining = lies.dealt(rng)
    plan: Plan = [{} for _ in range(rounds)]
    for silo in silos:
        r = 0
        plan[r][silo] = Part()
        while (r := r + 1) < rounds:
            if rng.random() < 0.9:
                does = str(rng.choice(["answers", "lies", "stalls", "late", "silent"], p=[0.45, 0.3, 0.1, 0.1, 0.05]))
                lie = next(about[rng.choice(3, p=[0.4, 0.45, 0.15])]) if does == "lies" else ("", None)
                plan[r][silo] = Part(does, *lie)
                continue
            for _ in range(rng.integers(1, 5)):  # it goes, and comes back
                plan[min(r, rounds - 1)][silo] = Part("gone")
                r += 1
            if r >= rounds:
                break
            how = rng.choice(["answers", "lies", "stalls"], p=[0.5, 0.3, 0.2])
            if how != "lies":
                plan[r][silo] = Part(str(how), join="stalls" if how == "stalls" else "")
                continue
            plan[r][silo] = Part("out", "", None, *next(joining))
            r += 1
            for _ in range(rng.integers(0, 3)):  # until it leaves it is not asked again
                plan[min(r, rounds - 1)][silo] = Part("out")
                r += 1
            plan[min(r, rounds - 1)][silo] = Part("gone")
    return plan


# -- nodes that follow a plan ------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody sleeps: what is late does not depend on how busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Held(NamedTuple):
    """What the process holds."""

    files: int
    """Open handles."""
    python: int
    """Bytes that Python's objects and NumPy's arrays take."""
    resident: int
    """Bytes of memory in use."""

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            len(os.listdir("/proc/self/fd")), tracemalloc.get_traced_memory()[0], pages * os.sysconf("SC_PAGESIZE")
        )


@dataclass
class Waiting:
    """A message that is not answered yet."""

    number: str
    node: int
    message: Message
    until: int = 0
    """The round in which it is, where it stalls."""
    looks: int = 0
    """How often the server has looked for its answer in vain."""

    @property
    def joins(self) -> bool:
        return self.message.metadata.message_type == "query.join"


class Planned(Nodes):
    """Nodes that do what the plan says. They count what they did, and what the process holds."""

    def __init__(self, made: Setting, plan: Plan, state: Path) -> None:
        honest = nodes(made, state=str(state))
        super().__init__(honest.app, [own.node_config for own in honest.contexts.values()], self._remember)
        self.plan, self.round = plan, 1
        self.done: Counter[str] = Counter()
        self.told: set[str] = set()
        """The kinds of lies."""
        self.held: dict[int, Held] = {}
        """By round."""
        self._final = str(exchange_number(len(plan), "final", MOST_EXCHANGES - 1))
        self._stalled: list[Waiting] = []
        self._late: dict[str, Waiting] = {}
        self._last: dict[str, RecordDict] = {}
        """Every silo's last answer that was no lie."""

    def _remember(self, silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "query.join":
            self._last[silo] = reply.content
        return reply

    def _part(self, silo: str) -> Part:
        return self.plan[self.round - 1].get(silo, Part())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        asked = messages[0].content["about"]
        joining = messages[0].metadata.message_type == "query.join"
        if joining or asked["exchange"] == self._final:
            return [self._push(message, joining, honest=not joining) for message in messages]
        self.round = int(asked["round"])
        if self.round in (round(WARM * len(self.plan)), len(self.plan)):
            self.held[self.round] = Held.now()
        numbers = [self._push(message, joining) for message in messages]
        self._catch_up()
        if self.round < len(self.plan):
            self.round += 1  # who is gone by then is gone when the server looks who is there
            self.gone = {silo for silo, part in self.plan[self.round - 1].items() if part.does == "gone"}
        return numbers

    def _push(self, message: Message, joining: bool, honest: bool = False) -> str:
        node = message.metadata.dst_node_id
        silo = self.silo(node)
        part = self._part(silo)
        does = {"": "answers", "stalls": "stalls"}.get(part.join, "lies") if joining else part.does
        if honest or does == "answers":
            self.done["joining: answers" if joining else "answers"] += 1
            (number,) = super().push_messages([message])
            return number
        self.done[f"joining: {does}" if joining else does] += 1
        number = str(len(self.sent))
        message.metadata.__dict__["_message_id"] = number
        self.sent.append((silo, message.metadata.message_type))
        if does == "stalls":
            self._stalled.append(Waiting(number, node, message, self.round + len(self.sent) % 3))
        elif does == "late":
            self._late[number] = Waiting(number, node, message)
        elif does == "lies":
            self._replies[number] = self._lied(message, silo, part.join if joining else part.lie, part)
        return number

    def _lied(self, message: Message, silo: str, lie: str, part: Part) -> Message:
        reply = answer(self.app, message, self.contexts[message.metadata.dst_node_id])
        if lie in (REPLAY, ANOTHERS):
            others = [self._last[key] for key in self._last if key != silo]
            reply = Message(self._last.get(silo, others[0]) if lie == REPLAY else others[-1], reply_to=message)
        elif lie.split(": ")[0] in ("fields", "evaluation") and lie.split(": ")[0] not in reply.content:
            return reply  # there is nothing to lie about: it was not asked for that
        else:
            attack = part.join_attack if message.metadata.message_type == "query.join" else part.attack
            assert attack is not None
            attack(reply.content)
        self.told.add(lie)
        return reply

    def _catch_up(self) -> None:
        """Work on messages of rounds long past, the last one first: after newer ones, and when nobody waits for them
        but for those who want to join."""
        for waiting in reversed(self._stalled.copy()):
            if waiting.until <= self.round:
                self._stalled.remove(waiting)
                reply = answer(self.app, waiting.message, self.contexts[waiting.node])
                if waiting.joins:
                    self._replies[waiting.number] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found: list[Message] = []
        for number in message_ids:
            waiting = self._late.get(number)
            if waiting is None:
                found += super().pull_messages([number])
            elif (waiting := self._late[number]).looks < 2:
                waiting.looks += 1
            else:
                del self._late[number]
                found.append(answer(self.app, waiting.message, self.contexts[waiting.node]))
        return found


# -- the same in the simulator -----------------------------------------------------------------------------------------


class WithoutSome(Reference):
    """The simulator's plain engine, of whose clients those are absent that the plan says are."""

    plan: Plan

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> ExchangeResult:
        ids = self.job.runs[0].federation.ids
        here = [[self.plan[round - 1].get(ids[k], Part()).trains for k in cohort] for cohort in cohorts]
        return super().exchange(state, stage, position, step, round, cohorts, present & np.array(here))


def simulated(made: Setting, plan: Plan) -> tuple[ef.Result, list[int], list[tuple[int, float]]]:
    """The result; by round how many replied, and (rows, accuracy) over the test rows of those who counted."""
    simulation = build(made.config, load_federations(made.config))
    tables = make_tables(simulation.job)
    engine = WithoutSome(simulation.job, tables)
    engine.plan = plan
    training = Training(simulation.job, engine, Evaluator(simulation.job, tables))
    replied, measured = [], []
    for step in training.rounds():
        replied.append(step.logs[0].replied)
        # a round's model is counted with when the next round brings it; the last one's by everyone who is there
        last = step.round == len(plan)
        parts = plan[step.round - 1 if last else step.round]
        who = [parts.get(silo, Part()) for silo in made.silos]
        counted = [part.does not in ("gone", "out") if last else part.counts for part in who]
        counts = step.scores[step.round][0]["clients"].counts[counted].sum((0, 1))
        measured.append((int(counts.sum()), float(np.trace(counts) / counts.sum()) if counts.sum() else np.nan))
    return training.result(), replied, measured


@dataclass
class Soaked:
    """What came of it."""

    rounds: int
    done: Counter[str]
    """Messages by how they were answered."""
    told: int
    """Kinds of lies."""
    refused: int
    """Answers and absences that the result names."""
    unlike: int
    """Rounds whose number of replies, test rows or accuracy is another than the simulator's."""
    difference: float
    """Between the two models, at most."""
    before: Held
    after: Held
    between: int
    """Rounds between the two."""


def soak(name: str, rounds: int, folder: Path, seed: int = 0) -> Soaked:
    """A federation of the files in the folder and the simulator carry out one plan."""
    rng = np.random.default_rng(seed)
    options = {"rounds": rounds, "clients-per-round": 4, "engine": "reference"}
    made = setting(folder, METHODS[name], run=options, flower=PATIENT)
    with mock.patch.object(link, "time", Clock()), tempfile.TemporaryDirectory() as place:
        plan = make_plan(made.silos, rounds, Lies.gather(made), rng)
        grid = Planned(made, plan, Path(place) / "state")
        tracemalloc.start()
        try:
            found = federate(made, grid, Path(place) / "runs")
        finally:
            tracemalloc.stop()
    expected, replied, measured = simulated(made, plan)
    seed_of = made.config.run.seed_list[0]
    unlike = np.array(found.log["replied"]) != replied
    table = found.metrics.query("scope == 'global' and split == 'test'").pivot_table(
        index="round", columns="metric", values="value", observed=True
    )
    for number, (rows, accuracy) in enumerate(measured, start=1):
        same = table.loc[number, "rows"] == rows if number in table.index else rows == 0
        unlike[number - 1] |= not same or (rows > 0 and abs(table.loc[number, "accuracy"] - accuracy) > 1e-9)
    first, last = grid.held.values()
    return Soaked(
        rounds,
        grid.done,
        len(grid.told),
        len(found.rejections),
        int(unlike.sum()),
        max(
            float(np.abs(found.parameters[seed_of][leaf] - value).max())
            for leaf, value in expected.parameters[seed_of].items()
        ),
        first,
        last,
        rounds - round(WARM * rounds),
    )


def measure() -> dict[str, dict[str, float]]:
    """Return, for each method, what 200 rounds came to."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # every silo's own words about every refusal
    with tempfile.TemporaryDirectory() as place:
        write_files(Path(place))
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            return {name: _figures(soak(name, 200, Path(place))) for name in METHODS}


def _figures(came: Soaked) -> dict[str, float]:
    files, *memory = (after - before for after, before in zip(came.after, came.before, strict=True))
    python, resident = (round(grown / came.between / 1000, 1) for grown in memory)
    return {
        "rounds": came.rounds,
        "messages": sum(number for does, number in came.done.items() if not does.startswith("joining")),
        "introductions": sum(number for does, number in came.done.items() if does.startswith("joining")),
        **{does.replace(": ", "_"): number for does, number in sorted(came.done.items())},
        "kinds_of_lies": came.told,
        "refused_or_missing": came.refused,
        "unlike_rounds": came.unlike,
        "model_difference": came.difference,
        "last_rounds": came.between,
        "open_files_more": files,
        "python_kb_per_round": python,
        "process_kb_per_round": resident,
    }
