"""A trained model as an ONNX graph: one input per column of a table, everything that the schema does inside.

A column of numbers is an input of doubles [rows] (missing: NaN), a column of categories one of strings (missing: ""), a
date has an input of doubles for each of its parts. The schema's words for a missing value (`na_values`) are missing
here, too. A graph cannot refuse a row as the schema does: a row that would be
refused gets NaN for its probabilities, and as label "" or, where labels are numbers, the smallest 64-bit one.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.data.dates import ISO
from equifed.data.encode import MAX_STANDARDISED
from equifed.data.missing import numbers_among, spellings, with_missing
from equifed.data.schema import MERGED, MISSING, OTHER, Column, Schema, Sensitive, crossed
from equifed.errors import MAX_FLOAT32, ConfigError
from equifed.partition.base import UNKNOWN
from equifed.results.export import SAMPLE, check_same, expected_of, exported, quiet, sample_inputs

if TYPE_CHECKING:
    from equifed.results.model import Model

ML = "ai.onnx.ml"
ROWS = "rows"
UNLISTED = -2
"""The code of a value that the schema does not list."""
NO_LABEL = np.iinfo(np.int64).min


def to_onnx(model: Model) -> bytes:
    """The graph, compared with the model on sample rows before it is handed out."""
    onnx, runtime = _packages()
    program = exported(model)
    import torch

    with quiet():
        made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    graph = _Graph(onnx, model)
    graph.build(made.model_proto)
    proto = graph.model(made.model_proto)
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    _compare(runtime, content, model)
    return content


def feed_of(model: Model, frame: Any) -> dict[str, np.ndarray]:
    """A table as the graph's inputs; an array where the model takes arrays."""
    if model.schema is None:
        return {"x": np.asarray(frame, np.float32)}
    feed: dict[str, np.ndarray] = {}
    frame = with_missing(frame, model.schema.na_values)
    for column in model.schema.columns:
        if column.kind == "categorical":
            feed[column.name] = _texts(frame[column.name])
        else:
            plain = column.model_copy(update={"fill": np.nan})  # missing values stay missing: the graph fills them
            feed[column.title] = plain.numbers(frame[column.name])
    for rule in model.schema.sensitive if model.needs_groups else ():
        if rule.column not in feed:
            series = frame[rule.column]
            feed[rule.column] = series.to_numpy(np.float64) if rule.threshold is not None else _texts(series)
    return feed


def _texts(series: Any) -> np.ndarray:
    from equifed.partition.base import as_text

    return np.array(
        ["" if missing else as_text(value) for value, missing in zip(series, series.isna(), strict=True)], object
    )


class _Graph:
    """Nodes one after the other; every method returns the name of what it computes."""

    def __init__(self, onnx: Any, model: Model) -> None:
        self.onnx, self.made = onnx, model
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: dict[str, str] = {}
        """Kind by name: number or text."""
        self.valid: list[str] = []
        """Of every column, which rows are not to be refused."""
        self._count = 0

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: str, domain: str = "", output: str = "", **attributes: Any) -> str:
        self._count += 1
        name = output or f"equifed/{self._count}"
        node = self.onnx.helper.make_node(
            kind, list(inputs), [name], domain=domain, name=f"equifed/{kind}/{self._count}", **attributes
        )
        self.nodes.append(node)
        return name

    def constant(self, value: Any) -> str:
        self._count += 1
        name, array = f"equifed/{self._count}", np.asarray(value)
        if array.dtype.kind in "UO":
            tensor = self.onnx.helper.make_tensor(
                name, self.onnx.TensorProto.STRING, array.shape, [text.encode() for text in array.reshape(-1).tolist()]
            )
        else:
            tensor = self.onnx.numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float64(value))

    def cast(self, value: str, kind: str) -> str:
        return self.op("Cast", value, to=getattr(self.onnx.TensorProto, kind))

    def column(self, value: str) -> str:
        """[n] as [n, 1]."""
        return self.op("Unsqueeze", value, self.constant(np.array([1], np.int64)))

    def take(self, name: str, kind: str) -> str:
        """An input of the graph."""
        if self.inputs.setdefault(name, kind) != kind:
            raise ConfigError(
                f"The column {name!r} is a number in one place of the schema and a category in another: such a model "
                "cannot be written as a graph. Score rows with `equifed predict`."
            )
        return name

    def codes(self, name: str, codes: dict[str, int], missing: int = UNKNOWN) -> str:
        """Of a column of texts, UNLISTED where a value is not among them."""
        assert self.made.schema is not None
        codes = codes | dict.fromkeys(("", *spellings(self.made.schema.na_values)), missing)
        return self.op(
            "LabelEncoder",
            self.take(name, "text"),
            domain=ML,
            keys_strings=list(codes),
            values_int64s=list(codes.values()),
            default_int64=UNLISTED,
        )

    def numbers(self, name: str) -> str:
        """A column of numbers, NaN where a value is missing."""
        assert self.made.schema is not None
        value = self.take(name, "number")
        for number in numbers_among(self.made.schema.na_values):
            value = self.op("Where", self.op("Equal", value, self.number(number)), self.number(np.nan), value)
        return value

    # -- the parts of the graph ----------------------------------------------------------------------------------------

    def build(self, body: Any) -> None:
        schema = self.made.schema
        if schema is None:
            inputs = [self.take("x", "array")]
        else:
            parts = [self.encoded(schema, column) for column in schema.columns]
            inputs = [self.op("Concat", *parts, axis=1)]
        if self.made.needs_groups:
            inputs.append(self.group(schema) if schema is not None else self.take("groups", "code"))
        prefixed = self.onnx.compose.add_prefix(body, "model/")
        for name, given in zip(prefixed.graph.input, inputs, strict=True):
            self.op("Identity", given, output=name.name)
        self.nodes += list(prefixed.graph.node)
        self.constants += list(prefixed.graph.initializer)
        self.ending(prefixed.graph.output[0].name)

    def encoded(self, schema: Schema, column: Column) -> str:
        """The inputs [n, k] that a column becomes, as `Schema.inputs` makes them."""
        if column.kind == "categorical":
            return self.categories(schema, column)
        value = self.numbers(column.title) if column.part is None else self.take(column.title, "number")
        missing = self.op("IsNaN", value)
        if column.fill is not None:
            value = self.op("Where", missing, self.number(column.fill), value)
        self.valid.append(self.op("LessOrEqual", self.op("Abs", value), self.number(MAX_FLOAT32)))
        scaled = self.scaled(schema, column, value, column.low, column.high)
        return (
            self.op("Concat", scaled, self.column(self.cast(missing, "FLOAT")), axis=1) if column.indicator else scaled
        )

    def scaled(self, schema: Schema, column: Column, value: str, low: float | None, high: float | None) -> str:
        if schema.scaling == "minmax" and low is not None and high is not None:
            if schema.min_count:
                value = self.op("Clip", value, self.number(low), self.number(high))
            value = self.op("Sub", value, self.number(low))
            value = self.op("Div", value, self.number(high - low)) if high > low else value
        elif schema.scaling == "standard" and column.offset:
            value = self.op("Sub", value, self.number(column.offset))
        most = MAX_STANDARDISED if schema.scaling == "standard" else MAX_FLOAT32
        self.valid.append(self.op("LessOrEqual", self.op("Abs", value), self.number(most)))
        return self.column(self.cast(value, "FLOAT"))

    def categories(self, schema: Schema, column: Column) -> str:
        position = {value: i for i, value in enumerate(column.categories)}
        unlisted = position.get(OTHER) if schema.min_count else None
        missing = position.get(MISSING, unlisted if column.missing == "category" else None)
        codes = self.codes(column.name, position, UNKNOWN if missing is None else missing)
        found = self.op("GreaterOrEqual", codes, self.constant(np.int64(0)))
        known = self.op("Where", found, codes, self.constant(np.int64(unlisted or 0)))
        if unlisted is None:
            self.valid.append(found)
        elif missing is None:  # what is not listed has a category, what is missing has none
            self.valid.append(self.op("Not", self.op("Equal", codes, self.constant(np.int64(UNKNOWN)))))
        if schema.encoding == "onehot":
            size = self.constant(np.array([len(position)], np.int64))
            return self.op("OneHot", known, size, self.constant(np.array([0, 1], np.float32)), axis=1)
        return self.scaled(schema, column, self.cast(known, "DOUBLE"), 0.0, len(position) - 1.0)

    def group(self, schema: Schema) -> str:
        """The code of each row's group, as `Schema.group_codes` makes it; -1 where it is unknown."""
        codes, names = self.constant(np.int64(0)), ["all"]
        unknown = None
        for number, rule in enumerate(schema.sensitive):
            more, absent = self.rule(rule)
            codes = self.op("Add", self.op("Mul", codes, self.constant(np.int64(len(rule.group_names)))), more)
            unknown = absent if unknown is None else self.op("Or", unknown, absent)
            names = crossed(names, rule.group_names) if number else rule.group_names
        position = {name: i for i, name in enumerate(schema.groups)}
        lookup = [position.get(name, position.get(MERGED, UNKNOWN)) for name in names]
        if unknown is None:
            raise ConfigError("The schema names no sensitive column, so that no row's group is known.")
        found = self.op("Gather", self.constant(np.array(lookup, np.int64)), codes)
        s = self.op("Where", unknown, self.constant(np.int64(UNKNOWN)), found)
        if not schema.min_count:  # a known value of no listed group is refused
            listed = self.op("GreaterOrEqual", found, self.constant(np.int64(0)))
            self.valid.append(self.op("Or", unknown, listed))
        return s

    def rule(self, rule: Sensitive) -> tuple[str, str]:
        """A column's code, at least 0, and where the column has no value."""
        if rule.threshold is not None:
            value = self.numbers(rule.column)
            above = self.op("GreaterOrEqual", value, self.number(rule.threshold))
            return self.cast(above, "INT64"), self.op("IsNaN", value)
        position = {name: i for i, name in enumerate(rule.group_names)}
        codes = self.codes(rule.column, {value: position[name] for value, name in rule.groups.items()})
        absent = self.op("Equal", codes, self.constant(np.int64(UNKNOWN)))
        unlisted = self.op("Equal", codes, self.constant(np.int64(UNLISTED)))
        if rule.other is not None:
            codes = self.op("Where", unlisted, self.constant(np.int64(position[rule.other])), codes)
        else:
            self.valid.append(self.op("Not", unlisted))
        return self.op("Max", codes, self.constant(np.int64(0))), absent

    def ending(self, scores: str) -> None:
        """The outputs: those of refused rows say so."""
        valid = None
        for each in self.valid:
            valid = each if valid is None else self.op("And", valid, each)
        if not self.made.is_classifier:
            value = self.cast(scores, "DOUBLE")
            self.op(
                *(["Identity", value] if valid is None else ["Where", valid, value, self.number(np.nan)]),
                output="value",
            )
            return
        classes = self.made.classes_
        texts = classes.dtype.kind not in "iu"
        label = self.op(
            "Gather",
            self.constant(classes.astype(str) if texts else classes.astype(np.int64)),
            self.op("ArgMax", scores, axis=1, keepdims=0),
        )
        if valid is None:
            self.op("Identity", scores, output="probabilities")
            self.op("Identity", label, output="label")
            return
        self.op("Where", self.column(valid), scores, self.constant(np.float32(np.nan)), output="probabilities")
        self.op("Where", valid, label, self.constant(np.array("") if texts else np.int64(NO_LABEL)), output="label")

    def model(self, body: Any) -> Any:
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        types = {"number": kinds.DOUBLE, "text": kinds.STRING, "array": kinds.FLOAT, "code": kinds.INT64}
        shapes: dict[str, list[Any]] = {"array": [ROWS, *self.made.state.shape]}
        inputs = [
            helper.make_tensor_value_info(name, types[kind], shapes.get(kind, [ROWS]))
            for name, kind in self.inputs.items()
        ]
        if self.made.is_classifier:
            classes = self.made.classes_
            outputs = [
                helper.make_tensor_value_info(
                    "label", kinds.INT64 if classes.dtype.kind in "iu" else kinds.STRING, [ROWS]
                ),
                helper.make_tensor_value_info("probabilities", kinds.FLOAT, [ROWS, len(classes)]),
            ]
        else:
            outputs = [helper.make_tensor_value_info("value", kinds.DOUBLE, [ROWS])]
        graph = helper.make_graph(self.nodes, "equifed", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid(each.domain, each.version) for each in body.opset_import if each.domain != ML]
        proto = helper.make_model(
            graph,
            opset_imports=[*opsets, helper.make_opsetid(ML, 3)],
            functions=list(body.functions),
            producer_name="equifed",
            producer_version=version("equifed"),
            doc_string=repr(self.made),
        )
        proto.ir_version = body.ir_version
        facts = {"classes": "\n".join(self.made.labels), "meaning": self.made.meaning, "method": self.made.method}
        helper.set_model_props(proto, {name: value for name, value in facts.items() if value})
        return proto


def _compare(runtime: Any, content: bytes, model: Model) -> None:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    groups = None
    if model.schema is None:
        rows: Any = sample_inputs(model, rng)
        groups = rng.integers(-1, len(model.groups), len(rows)) if model.needs_groups else None
    else:
        rows = sample_frame(model, rng)
    feed = feed_of(model, rows) | ({} if groups is None else {"groups": groups})
    wanted = "probabilities" if model.is_classifier else "value"
    check_same("ONNX graph", session.run([wanted], feed)[0], expected_of(model, model.scores(rows, groups=groups)))


def sample_frame(model: Model, rng: np.random.Generator) -> Any:
    """A table of rows that the schema allows, drawn from it: every category, missing values where they are taken, and
    numbers that lie where the training rows did, as far as the schema and the scaling tell."""
    import pandas as pd

    assert model.schema is not None
    schema, made, at = model.schema, sample_inputs(model, rng).astype(np.float64), 0
    values: dict[str, Any] = {}
    for column in schema.columns:
        present = rng.random(SAMPLE) > 0.1
        if column.kind == "categorical":
            texts = [None if value == MISSING else value for value in column.categories]
            values[column.name] = np.resize(np.array(texts, object), SAMPLE)
        elif column.kind == "date":
            days = pd.Timestamp(2000, 1, 1) + pd.to_timedelta(rng.integers(0, 9000, SAMPLE), "D")
            written = pd.Series(days.strftime("%Y-%m-%d" if column.format == ISO else column.format), dtype=object)
            values.setdefault(column.name, written.where(present | (column.fill is None)))
        else:
            low, high = column.low, column.high
            numbers = made[:, at] + column.offset if low is None or high is None else rng.uniform(low, high, SAMPLE)
            values[column.name] = pd.Series(numbers).where(present | (column.fill is None))
        at += len(column.inputs(schema.encoding))
    for rule in schema.sensitive if model.needs_groups else ():
        if rule.column in values:
            continue
        if rule.threshold is not None:
            values[rule.column] = rule.threshold + rng.normal(size=SAMPLE)
        else:
            values[rule.column] = rng.choice(np.array([*rule.groups, None], object), SAMPLE)
    return pd.DataFrame(values)


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnx.compose
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise ConfigError(
            f"An ONNX graph needs the package {error.name}, which is not installed. Install the extra: pip install "
            "'equifed[onnx]'."
        ) from error
    return onnx, onnxruntime
