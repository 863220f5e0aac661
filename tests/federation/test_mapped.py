"""Rows that stay in a file: which rows a client gets, how they are prepared, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from own_data import federation_of
from pyarrow import feather, parquet

from equifed import Columns, Federation, Holdout, Mapped
from equifed.data import Schema
from equifed.errors import ConfigError, DataError, EquifedWarning
from equifed.federation import prepare
from equifed.federation.mapped import ABOUT, CLIENTS, PIECE, ROWS, MappedFile, Names

INPUTS = ["age", "dose", "score"]


def visits(clients: int = 60, seed: int = 0) -> pd.DataFrame:
    """Rows of clients of 1 to 30 rows, one client after another, and not in the order of their names."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(rng.permutation(clients), rng.integers(1, 31, clients))
    frame = pd.DataFrame(rng.normal(50, 9, (len(owner), 3)).astype(np.float32), columns=INPUTS)
    sex = rng.choice(["f", "m"], len(owner))
    ill = (frame["age"] + 4 * (sex == "m") + rng.normal(0, 9, len(owner)) > 52).astype(int)
    return frame.assign(patient=owner, sex=sex, ill=ill)


def mapped(file: Path | list[Path], folder: Path, **options: Any) -> Federation:
    columns = {"client": "patient", "label": "ill", "sensitive": "sex", "cache": folder / "cache", "test": 0.0}
    return federation_of(file, **{**columns, **options})  # type: ignore[arg-type]


def written(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False, row_group_size=100)
    elif path.suffix == ".feather":
        feather.write_feather(frame, path, chunksize=70)
    else:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        with pa.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table, max_chunksize=70)
    return path


def check_rows(fed: Federation, frame: pd.DataFrame) -> None:
    """Every client has its rows of the table, in the table's order."""
    assert fed.mapped is not None
    assert list(fed.ids) == sorted(frame["patient"].astype(str).unique())
    for k, name in enumerate(fed.ids):
        own = frame[frame["patient"].astype(str) == name]
        rows = fed.mapped.take(np.array([k]))
        np.testing.assert_array_equal(rows.x, own[INPUTS].to_numpy())
        np.testing.assert_array_equal(rows.y, own["ill"])
        np.testing.assert_array_equal(rows.s, own["sex"] == "m")


@pytest.mark.parametrize("suffix", ["parquet", "feather", "arrow"])
@pytest.mark.parametrize("mixed", [False, True])
def test_every_client_gets_its_rows_in_order(
    suffix: str, mixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "PIECE", 64)  # clients go on from one piece to the next
    monkeypatch.setattr(prepare, "BUCKET", 3000)  # some ten files to be sorted
    frame = visits()
    frame = frame.sample(frac=1, random_state=3) if mixed else frame
    fed = mapped(written(frame, tmp_path / f"rows.{suffix}"), tmp_path)
    check_rows(fed, frame)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [ABOUT, CLIENTS, ROWS]
    assert not len(fed.test) + len(fed.validation)
    np.testing.assert_array_equal(fed.train.sizes, [(frame["patient"] == int(name)).sum() for name in fed.ids])


def test_a_folder_of_files_is_one_table(tmp_path: Path) -> None:
    frame, folder = visits(), tmp_path / "visits"
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(frame)), 3)):  # clients are cut in two
        written(frame.iloc[part], folder / f"part-{number}.parquet")
    fed = Federation.from_tables(
        Mapped(folder, client="patient"), Columns(label="ill", sensitive="sex"), holdout=Holdout(test=0)
    )
    check_rows(fed, frame)
    (cache,) = tmp_path.glob("visits.*.mapped")
    assert (cache / ROWS).exists()
    assert fed.name == "visits"


def test_rows_in_any_number_are_taken_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    frame = visits(clients=200)
    fed = mapped(written(frame, tmp_path / "rows.parquet"), tmp_path)
    assert fed.mapped is not None
    positions = np.random.default_rng(1).integers(0, len(frame), 3 * PIECE + 5)
    rows = fed.mapped.file.take(positions)
    np.testing.assert_array_equal(rows.x, frame[INPUTS].to_numpy()[positions])
    together = np.concatenate([part.x for part in fed.mapped.file.scan()])
    np.testing.assert_array_equal(together, frame[INPUTS].to_numpy())


def test_rows_held_back_are_nobody_s_training_rows(tmp_path: Path) -> None:
    frame = visits()
    file = written(frame, tmp_path / "rows.parquet")
    fed = mapped(file, tmp_path, test=0.1, validation=0.2, seed=4)
    assert fed.mapped is not None
    n = len(frame)
    tests, at_server = round(0.1 * n), round(0.2 * n)
    assert fed.row_counts == {"train": n - tests - at_server, "validation": at_server, "test": tests}
    everyone = fed.mapped.take(np.arange(fed.num_clients)).x
    all_rows = np.concatenate([everyone, fed.rows.x])
    assert len(np.unique(all_rows, axis=0)) == n == len(all_rows)
    np.testing.assert_array_equal(np.unique(all_rows, axis=0), np.unique(frame[INPUTS].to_numpy(), axis=0))
    # the federation's facts, by counting in the table of the rows that are left
    for k in range(fed.num_clients):
        assert len(fed.train[k]) == fed.train.sizes[k] == len(fed.mapped.take(np.array([k])).y)
    kept = np.isin(np.arange(n), np.concatenate(list(fed.mapped.held.values())), invert=True)
    left = frame[kept]
    crossed = pd.crosstab(left["sex"], left["ill"]).to_numpy()
    np.testing.assert_array_equal(fed.total_cells()[:2], crossed)
    np.testing.assert_array_equal(fed.cells().sum(0), crossed)
    for k, name in enumerate(fed.ids):
        own = left[left["patient"] == int(name)]
        assert fed.cells()[k].sum() == len(own)
        assert fed.cells()[k, 1, 0] == ((own["sex"] == "m") & (own["ill"] == 0)).sum()
    # the standardisation is that of the training rows
    assert fed.scaling is not None
    np.testing.assert_allclose(fed.scaling[0], left[INPUTS].mean(), rtol=1e-6)
    np.testing.assert_allclose(1 / fed.scaling[1], left[INPUTS].std(ddof=0), rtol=1e-6)
    again, other = mapped(file, tmp_path, test=0.1, seed=4), mapped(file, tmp_path, test=0.1, seed=5)
    assert again.mapped is not None
    assert not np.array_equal(again.rows.x, other.rows.x)


def test_a_client_all_of_whose_rows_are_held_back_or_dropped_stays(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[frame["patient"] == 7, "dose"] = np.nan
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex", drop=["patient"], missing="drop", min_count=0))
    fed = mapped(written(frame, tmp_path / "rows.parquet"), tmp_path, schema=schema, label=None, sensitive=None)
    assert fed.train.sizes[fed.ids.index("7")] == 0
    assert fed.provenance["dropped_rows"] == (frame["patient"] == 7).sum()
    assert (np.delete(fed.train.sizes, fed.ids.index("7")) > 0).all()
    held = mapped(tmp_path / "rows.parquet", tmp_path, schema=schema, label=None, sensitive=None, test=0.9)
    assert 0 in held.train.sizes
    assert held.num_clients == fed.num_clients


@pytest.mark.parametrize("piece", [0, 1, -1])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_piece_all_of_whose_rows_are_dropped(
    piece: int, mixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it the first, one in between or the last."""
    monkeypatch.setattr(prepare, "PIECE", 50)  # half of a group of rows in the file
    frame = visits().iloc[:400]
    frame = frame.sample(frac=1, random_state=3, ignore_index=True) if mixed else frame
    gone = np.split(np.arange(400), 8)[piece]
    frame.loc[gone, "dose"] = np.nan
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex", drop=["patient"], missing="drop", min_count=0))
    fed = mapped(written(frame, tmp_path / "rows.parquet"), tmp_path, schema=schema, label=None, sensitive=None)
    left = frame.drop(index=gone)
    assert fed.provenance["dropped_rows"] == 50
    np.testing.assert_array_equal(fed.train.sizes, [(left["patient"] == int(name)).sum() for name in fed.ids])
    np.testing.assert_array_equal(fed.total_cells()[:2], pd.crosstab(left["sex"], left["ill"]))
    assert fed.mapped is not None
    together = next(fed.mapped.file.scan()).x
    expected = left.sort_values("patient", key=lambda own: own.astype(str), kind="stable") if mixed else left
    np.testing.assert_array_equal(together, expected[INPUTS].to_numpy())
    assert fed.scaling is not None
    np.testing.assert_allclose(fed.scaling[0], left[INPUTS].mean(), rtol=1e-6)
    np.testing.assert_allclose(1 / fed.scaling[1], left[INPUTS].std(ddof=0), rtol=1e-6)
    nothing = written(frame.iloc[gone], tmp_path / "nothing.parquet")
    with pytest.raises(DataError, match="no row that can be used"):
        mapped(nothing, tmp_path, schema=schema, label=None, sensitive=None)


def test_a_constant_input_is_only_shifted(tmp_path: Path) -> None:
    frame = visits().assign(dose=np.float32(3.7))
    options = {"features": INPUTS, "test": 0.3}
    fed = mapped(written(frame, tmp_path / "rows.parquet"), tmp_path, **options)
    assert fed.scaling is not None
    assert fed.scaling[1][1] == 1
    np.testing.assert_allclose(fed.scaling[0][1], 3.7, rtol=1e-6)


def test_labels_groups_and_categories_are_those_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a row that the sample for the schema has not seen."""
    monkeypatch.setattr(prepare, "PIECE", 64)
    monkeypatch.setattr(prepare, "SAMPLES", 2)
    frame = visits().assign(ward="north")
    frame.loc[len(frame) // 2, ["sex", "ward", "ill"]] = ["x", "south", 2]
    fed = mapped(written(frame.astype({"ill": int}), tmp_path / "rows.parquet"), tmp_path)
    assert fed.groups == ("f", "m", "x")
    assert fed.classes == ("0", "1", "2")
    assert fed.features == (*INPUTS, "ward=north", "ward=south")
    assert fed.mapped is not None
    assert fed.mapped.take(np.arange(fed.num_clients)).x[:, 4].sum() == 1


def test_a_schema_makes_numbers_of_anything(tmp_path: Path) -> None:
    """As `from_tables` does of the same table in memory, with missing values, categories and two sensitive columns."""
    frame = visits()
    frame["ward"] = np.where(frame["dose"] > 50, "north", "south")
    frame["old"] = np.where(frame["age"] > 55, "old", "young")
    frame.loc[::9, "score"] = np.nan
    frame.loc[::11, "sex"] = None
    schema = Schema.infer(frame, Columns(label="ill", sensitive=["sex", "old"], drop=["patient"], min_count=0))
    (tmp_path / "schema.json").write_text(schema.to_json())
    options = {"label": None, "sensitive": None, "schema": tmp_path / "schema.json"}
    fed = mapped(written(frame, tmp_path / "rows.parquet"), tmp_path, **options)
    expected = schema.encode(frame)
    assert fed.mapped is not None
    rows = next(fed.mapped.file.scan())
    for name in ("x", "y", "s", "attribute"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name))
    assert fed.unknown_groups["train"] == frame["sex"].isna().sum()
    assert fed.schema == schema
    memory = fed.in_memory()
    assert memory.rows.attribute is not None
    np.testing.assert_array_equal(memory.total_cells(), fed.total_cells())
    np.testing.assert_array_equal(memory.cells(), fed.cells())


def test_regression(tmp_path: Path) -> None:
    frame = visits().drop(columns="ill").assign(cost=lambda rows: rows["age"] * 2)
    fed = mapped(written(frame, tmp_path / "rows.parquet"), tmp_path, label="cost", task="regression", scaling="none")
    assert fed.mapped is not None
    assert fed.scaling is None
    everyone = fed.mapped.take(np.arange(fed.num_clients))
    np.testing.assert_array_equal(np.sort(everyone.y), np.sort(frame["cost"].to_numpy()))
    assert everyone.y.dtype == np.float32


def test_test_and_validation_rows_of_files_of_their_own(tmp_path: Path) -> None:
    file, tests = written(visits(), tmp_path / "rows.parquet"), visits(5, seed=9)
    written(tests, tmp_path / "test.parquet")
    tests.to_csv(tmp_path / "validation.csv", index=False)
    fed = mapped(file, tmp_path, test_file=tmp_path / "test.parquet", validation_file=tmp_path / "validation.csv")
    np.testing.assert_array_equal(fed.rows.x[fed.test], tests[INPUTS].to_numpy())
    np.testing.assert_array_equal(fed.rows.y[fed.validation], tests["ill"])
    assert fed.row_counts["train"] == len(visits())
    own = {"client": "patient", "label": "ill", "sensitive": "sex", "cache": tmp_path / "cache"}
    unsaid = federation_of(file, test_file=tmp_path / "test.parquet", **own)  # type: ignore[arg-type]
    assert unsaid.row_counts == {"train": len(visits()), "validation": 0, "test": len(tests)}
    drawn = federation_of(file, **own)  # type: ignore[arg-type]
    assert drawn.row_counts["test"] == round(0.01 * len(visits()))


# -- the prepared folder -----------------------------------------------------------------------------------------------


def test_the_folder_is_made_once_for_the_same_files_and_questions(tmp_path: Path) -> None:
    file = written(visits(), tmp_path / "rows.parquet")
    mapped(file, tmp_path)
    made = (tmp_path / "cache" / ABOUT).stat().st_mtime_ns
    mapped(file, tmp_path, test=0.5, seed=3)  # which is decided later
    assert (tmp_path / "cache" / ABOUT).stat().st_mtime_ns == made
    less = mapped(file, tmp_path, features=["age", "dose"])
    assert less.features == ("age", "dose")
    written(visits(seed=5), file)
    check_rows(mapped(file, tmp_path), visits(seed=5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "rows.parquet"]  # nothing half made is left


def test_two_questions_to_one_file_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that neither is made in turns, and a pickled federation has its rows, also for who works elsewhere."""
    frame = visits()
    written(frame, tmp_path / "rows.parquet")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    names = [["age"], ["dose"], ["age"]]
    feds = [mapped(Path("rows.parquet"), tmp_path, features=some, cache=None) for some in names]
    assert len(list(tmp_path.glob("rows.parquet.*.mapped"))) == 2
    assert {fed.name for fed in feds} == {"rows"}
    content = pickle.dumps(feds)
    monkeypatch.chdir("elsewhere")
    for fed, some in zip(pickle.loads(content), names, strict=True):
        rows = next(fed.mapped.file.scan())
        np.testing.assert_array_equal(rows.x, frame[some].to_numpy())
    written(visits(seed=5), tmp_path / "rows.parquet")
    mapped(tmp_path / "rows.parquet", tmp_path, features=["age"], cache=None)
    assert len(list(tmp_path.glob("*.mapped"))) == 2  # the rows of a file that is no more are not kept


def test_two_files_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "visits"
    folder.mkdir()
    monkeypatch.chdir(folder)
    frame = visits()
    parts = [written(part, Path(f"{k}.parquet")) for k, part in enumerate((frame[:99], frame[99:]))]
    fed = mapped(parts, tmp_path, cache=None)
    check_rows(fed, frame)
    assert fed.name == "visits"


def test_a_pickled_federation_never_comes_back_with_other_rows(tmp_path: Path) -> None:
    frame = visits().assign(ward=lambda rows: rows["patient"] // 7)
    file = written(frame, tmp_path / "rows.parquet")
    options: dict[str, Any] = {"features": ["age"]}
    content = pickle.dumps(mapped(file, tmp_path, **options))
    for other in ({"features": ["dose"]}, {"client": "ward"}):
        mapped(file, tmp_path, **options | other)  # in the same folder
        with pytest.raises(DataError, match=r"cache: The prepared rows are not those .* `cache` of its own"):
            pickle.loads(content)
    written(frame, file)  # the same rows: the folder is made again, and is what it was
    mapped(file, tmp_path, **options)
    rows = next(pickle.loads(content).mapped.file.scan())
    np.testing.assert_array_equal(rows.x, frame[["age"]].to_numpy())


def test_damage_is_said_or_mended(tmp_path: Path) -> None:
    file = written(visits(), tmp_path / "rows.parquet")
    mapped(file, tmp_path)
    rows, clients, about = (tmp_path / "cache" / name for name in (ROWS, CLIENTS, ABOUT))
    content = rows.read_bytes()
    rows.write_bytes(content[:-1])
    with pytest.raises(
        DataError, match=r"cannot be used: rows.bin has [\d,]+ bytes, and its rows take .* Remove the f"
    ):
        MappedFile(tmp_path / "cache")
    with pytest.warns(EquifedWarning, match=r"rows.bin has .* That is done now"):
        check_rows(mapped(file, tmp_path), visits())
    names = clients.read_bytes()
    clients.write_bytes(names[:200] + b"?" + names[201:])
    with pytest.raises(DataError, match=r"clients.arrow does not fit its checksum"):
        MappedFile(tmp_path / "cache")
    clients.write_bytes(names)
    about.write_text(json.dumps(json.loads(about.read_text()) | {"rows": 5}))
    with pytest.raises(DataError, match="does not fit its checksum"):
        MappedFile(tmp_path / "cache")
    with pytest.warns(EquifedWarning, match="What it says of itself is not true"):
        check_rows(mapped(file, tmp_path), visits())
    rows.unlink()
    with pytest.raises(DataError, match="No such file"):
        MappedFile(tmp_path / "cache")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = written(visits(), tmp_path / "rows.parquet")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"has files that are no prepared rows. Name a new folder"):
        mapped(file, tmp_path)
    assert (tmp_path / "cache" / "thesis.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match="must be a folder"):
        mapped(file, tmp_path, cache=file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": "person"}, "'person'.*missing"),
        ({"label": "sick"}, "'sick'.*missing"),
        ({"sensitive": "gender"}, "gender.*missing"),
        ({"features": ["age", "weight"]}, "weight"),
        ({"test": 0.6, "validation": 0.4}, "leave none to train on"),
        ({"label": None}, "need a schema"),
        ({"test": 0.3, "test_file": "x.csv"}, "the test rows as a file or as a share of the rows, not both"),
        ({"validation": 0.1, "validation_file": "x.csv"}, "validation rows as a file or as a share .* not both"),
    ],
)
def test_bad_questions_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = written(visits(), tmp_path / "rows.parquet")
    with pytest.raises((ConfigError, DataError), match=f"(?s){words}"):
        mapped(file, tmp_path, **change)
    assert not list(tmp_path.glob(".*"))


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no such file"):
        mapped(tmp_path / "rows.parquet", tmp_path)
    for suffix in ("parquet", "arrow"):
        (tmp_path / f"rows.{suffix}").write_bytes(b"nothing of the kind")
        with pytest.raises(DataError, match=f"rows.{suffix}: The file cannot be read"):
            mapped(tmp_path / f"rows.{suffix}", tmp_path)
    file = written(visits(), tmp_path / "rows.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:2000] + bytes(500) + whole[2500:])
    with pytest.raises(DataError, match=r"rows.parquet: The file cannot be read"):
        mapped(file, tmp_path)
    visits().to_csv(tmp_path / "rows.csv")
    with pytest.raises(DataError, match=r"rows.csv: Rows are mapped from files that end in .parquet"):
        mapped(tmp_path / "rows.csv", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="The folder has no file"):
        mapped(tmp_path / "empty", tmp_path)
    with pytest.raises(DataError, match="have no row"):
        mapped(written(visits().iloc[:0], tmp_path / "none.parquet"), tmp_path)


def test_bad_rows_are_refused_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "PIECE", 64)
    frame = visits()
    nobody = frame.astype({"patient": float})
    nobody.loc[150, "patient"] = np.nan
    with pytest.raises(DataError, match=r"rows.parquet: Column 'patient', row 150: the value is missing"):
        mapped(written(nobody, tmp_path / "rows.parquet"), tmp_path)
    unlabelled = frame.astype({"ill": float})
    unlabelled.loc[201, "ill"] = np.nan
    with pytest.raises(DataError, match=r"rows.parquet: Column 'ill', row 201: the value is missing"):
        mapped(written(unlabelled, tmp_path / "rows.parquet"), tmp_path)
    infinite = frame.copy()
    infinite.loc[170, "dose"] = np.inf
    with pytest.raises(DataError, match=r"rows.parquet: Column 'dose', row 170"):
        mapped(written(infinite, tmp_path / "rows.parquet"), tmp_path)


def test_names(tmp_path: Path) -> None:
    names = Names(pa.array(["a", "b", "c", "é"]))
    assert [*names] == ["a", "b", "c", "é"]
    assert names[1:3] == ["b", "c"]
    assert names[-1] == "é"
    assert names.index("c") == 2
    assert "é" in names
    assert "d" not in names
    assert 3 not in names
    assert names == ("a", "b", "c", "é")
    assert names != ("a", "b", "c", "d")
    assert names == Names(pa.array(["a", "b", "c", "é"]))
    with pytest.raises(ValueError, match="not among the names"):
        names.index("z")
    fed = mapped(written(visits(), tmp_path / "rows.parquet"), tmp_path)
    copy = pickle.loads(pickle.dumps(fed))
    check_rows(copy, visits())
    assert parquet.read_table(tmp_path / "rows.parquet").num_rows == len(visits())
