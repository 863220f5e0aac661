"""Messages that no program of ours writes, drawn by hypothesis: replies, introductions and evaluations to the whole
server, and requests to the whole app of a silo. No run ends, nothing impossible is applied, and a silo answers with
what it should or with a refusal in clean words; it writes nowhere but in its state folder, and never sends NaN."""

from __future__ import annotations

import copy
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

pytest.importorskip("flwr")

from flower.inprocess import Nodes, answer, be_the_server, federate, nodes, setting, write_files
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from equifed import methods
from equifed.flower import link
from equifed.protocol import Method
from equifed.words import MOST
from fuzz.mutations import EXAMPLES, bytes_like, fuzzed

ROUNDS = 8
"""Of a run of the server: each has a reply and an evaluation of its own."""
PATIENT = {"deadline": 5.0, "join-deadline": 5.0, "min-replies": 1, "min-count": 0}
RECORDS = ("about", "fields", "evaluation", "scaling", "\x1b[31m", "more")
NAMES = st.one_of(
    st.sampled_from(["rows", "client", "exchange", "refused", "round", "from", "keep", "evaluate", "run", "app"]),
    st.sampled_from(["test-rows", "sum", "counts", "loss", "", "x" * 5000, "\u202e", "a\nb", "../../x", "\x00"]),
    st.text(max_size=8),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["a", "b", "../..", "/tmp/x", "x" * 100_000, "\x1b[2J", "\u202e", "a\nRound 2 of 2", "-1", "1e999"]
    ),
    st.text(max_size=12),
)
INTEGERS = st.one_of(st.sampled_from([0, 1, 9, 37, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]), st.integers(-9, 5000))
NUMBERS = st.one_of(st.floats(), st.sampled_from([1e308, 1e25, -1e25, 0.5, 37.0, 1e-30]))
WORDS = st.one_of(
    TEXTS, st.binary(max_size=12), INTEGERS, NUMBERS, st.booleans(), st.lists(TEXTS, max_size=3), st.lists(st.floats())
)
DTYPES = st.sampled_from(["<f4", "<f8", ">f4", "<i8", "|u1", "?", "<f2", "<c8", "<U3", "|S3", "<M8[s]", "|V2", "g"])
tried = settings(fuzzed, phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""What fails is shown as it was drawn: to make it smaller would take many runs."""


@st.composite
def arrays_for(draw: st.DrawFn, real: Array) -> Array:
    """In place of this one: other numbers, another shape or type, or bytes that are none."""
    values = real.numpy()
    how = draw(st.sampled_from(["numbers", "one number", "scaled", "other", "bytes", "says", "itself"]))
    if how == "itself":
        return real
    if how == "numbers" and values.dtype.kind == "f":
        width = 32 if values.dtype.itemsize == 4 else 64
        return Array(draw(drawn.arrays(values.dtype, values.shape, elements=st.floats(width=width))))
    if how == "one number":
        with np.errstate(all="ignore"):
            number = np.asarray(draw(NUMBERS if values.dtype.kind == "f" else INTEGERS)).astype(values.dtype)
        changed = values.copy()
        if changed.size and draw(st.booleans()):
            changed.reshape(-1)[draw(st.integers(0, changed.size - 1))] = number
        else:
            changed[...] = number
        return Array(changed)
    if how == "scaled" and values.dtype.kind == "f":
        with np.errstate(all="ignore"):
            scaled = values * draw(st.sampled_from([-1, 0.5, 2, 50, 1e4, 1e12, 1e30]))
        return Array(np.asarray(scaled, values.dtype))
    if how == "bytes":
        content = draw(bytes_like(real.data))
        return Array("float32", (3,), draw(st.sampled_from(["numpy.ndarray", "torch.tensor", ""])), content)
    if how == "says":  # what Flower's record says of the bytes is another matter
        return Array(draw(TEXTS), tuple(draw(st.lists(INTEGERS, max_size=3))), "numpy.ndarray", real.data)
    shape = draw(st.one_of(drawn.array_shapes(min_dims=0, max_dims=4, min_side=0), st.just(values.shape)))
    return Array(np.zeros(shape, draw(DTYPES)))


@st.composite
def records(draw: st.DrawFn, real: Any) -> Any:
    """In place of a record: with entries changed, left out or added, or one of another kind."""
    how = draw(st.sampled_from(["entry", "entry", "entry", "more", "less", "arrays", "numbers", "words"]))
    if how == "arrays":
        return ArrayRecord({draw(NAMES): Array(np.zeros(2))})
    if how == "numbers":
        return MetricRecord({draw(NAMES): draw(st.one_of(st.floats(), INTEGERS))})
    if how == "words":
        return ConfigRecord(draw(st.dictionaries(NAMES, WORDS, max_size=4)))
    entries = dict(real)
    names = sorted(entries)
    is_arrays = isinstance(real, ArrayRecord)
    if how == "more":
        entries[draw(NAMES)] = Array(np.zeros(3, np.float32)) if is_arrays else draw(WORDS)
    elif names and how == "less":
        del entries[draw(st.sampled_from(names))]
    elif names:
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
            entries[name] = draw(arrays_for(real[name]) if is_arrays else WORDS)
    return ArrayRecord(entries) if is_arrays else ConfigRecord(entries)


@st.composite
def contents(draw: st.DrawFn, real: RecordDict) -> RecordDict:
    """In place of the content of a message."""
    made = dict(real.items())
    likely = [name for name in made for _ in range(1 if name == "about" else 4)]
    for name in draw(st.lists(st.sampled_from(likely), min_size=1, max_size=2, unique=True)):
        if draw(st.integers(0, 9)):
            made[name] = draw(records(made[name]))
        else:
            del made[name]
    if not draw(st.integers(0, 4)):
        made[draw(st.sampled_from(RECORDS))] = ConfigRecord({draw(NAMES): draw(WORDS)})
    return RecordDict(made)


def is_clean(text: str) -> bool:
    return len(text) <= MOST and text.isprintable()


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("silos")
    write_files(folder)
    return folder


class Clock:
    """Nobody need wait for what never comes."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


# -- the server --------------------------------------------------------------------------------------------------------

came: Counter[str] = Counter()


@settings(tried, max_examples=max(EXAMPLES // 16, 2))
@given(data=st.data())
def test_the_server_goes_on(data: st.DataObject, silos: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run in which silo a answers otherwise every time, in the end as honestly as it began."""
    made = setting(silos, run={"rounds": ROUNDS, "clients-per-round": "all"}, flower=PATIENT)
    introduces = data.draw(st.integers(0, 3)) == 0

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a" and (message.metadata.message_type != "query.join" or introduces):
            came["replies"] += 1
            return Message(data.draw(contents(reply.content)), reply_to=message)
        return reply

    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "time", Clock())
        found = federate(made, nodes(made, fault), folder)
    assert found.log["applied"].all()
    assert found.log["replied"].ge(5).all()
    assert set(found.rejections["client"]) <= {"a"}
    came["refused"] += len(found.rejections)
    assert all(map(is_clean, found.rejections["reason"]))
    # an update of a norm of at most 100 medians, or 1, and the others' between it and the model
    assert all(np.abs(value).max() < 100 * ROUNDS for value in found.parameters[3].values())
    table = found.metrics.query("scope == 'global' and split == 'test'")
    values = table.pivot_table(index="round", columns="metric", values="value", observed=True)
    tests = sum(silo["test_rows"] for silo in found.info["federation"]["silos"].values())
    assert values["rows"].between(1, tests).all()
    assert values["accuracy"].between(0, 1).all()
    assert values["loss"].between(0, 16.2).all()


# -- a silo ------------------------------------------------------------------------------------------------------------

METHODS: list[Method] = [methods.FedAvg(), methods.FedEM(), methods.FRL()]
"""One that is plain, one whose silos remember, and one whose fields are packed."""


class Written:
    """Where the process writes, while it is looked at: Python tells its hooks of whatever is opened, made or moved."""

    def __init__(self) -> None:
        self.looking, self.paths = False, set[str]()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.looking:
            return
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            flags = args[2] or 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC):
                self.paths.add(os.fsdecode(args[0]))
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod"):
            self.paths.update(os.fsdecode(path) for path in args[:2] if isinstance(path, str | bytes | os.PathLike))


written = Written()


@pytest.fixture(scope="module", params=METHODS, ids=repr)
def asked(
    request: pytest.FixtureRequest, silos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Nodes, Path, list[Message]]]:
    """Nodes, their state folder, and what silo a was asked in a run of three rounds."""
    folder, seen = tmp_path_factory.mktemp("run"), []
    bias = {"bias": request.param.name != "frl"}
    made = setting(silos, request.param, run={"clients-per-round": "all"}, flower=PATIENT, model=bias)

    def keep(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a":
            seen.append(message)
        return reply

    grid = nodes(made, keep, state=str(folder / "state"))
    federate(made, grid, folder / "runs")
    grid.fault = None
    return grid, folder / "state", seen


@tried
@given(data=st.data())
@pytest.mark.sample(1)
def test_a_silo_answers(asked: tuple[Nodes, Path, list[Message]], data: st.DataObject) -> None:
    grid, state, seen = asked
    (own,) = (context for context in grid.contexts.values() if context.node_config["client-id"] == "a")
    real = data.draw(st.sampled_from(seen))
    content = data.draw(contents(copy.deepcopy(real.content)))
    be_the_server()
    message = Message(content, own.node_id, real.metadata.message_type)
    written.paths, written.looking = set(), True
    try:
        reply = answer(grid.app, message, own)
    finally:
        written.looking = False
    assert not reply.has_error(), reply.error
    about = dict(reply.content["about"])
    assert about["client"] == "a"
    if "refused" in about:
        assert set(reply.content) == {"about"}
        assert is_clean(about["refused"])
    for record in reply.content.array_records.values():
        for array in record.values():
            values = array.numpy()
            assert values.dtype.kind in "iu" or np.isfinite(values).all()
    assert all(len(str(value)) <= MOST for value in about.values())
    outside = {path for path in written.paths if not Path(path).is_relative_to(state / "run" / "a")}
    # the folder of another run, if the request names one that could be one
    run = content.config_records["about"].get("run") if "about" in content.config_records else None
    if isinstance(run, str | int | float):
        outside = {path for path in outside if path not in map(str, (state / str(run), state / str(run) / "a"))}
        outside = {path for path in outside if not Path(path).is_relative_to(state / str(run) / "a")}
    assert not outside
