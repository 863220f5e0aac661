"""Every loader and preset against figures counted here from the raw files, or given by the papers."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equifed as ef
from equifed import data
from equifed.data.download import where
from equifed.data.sets import acs, mnist, tables
from equifed.errors import ConfigError, DataError
from equifed.files import cache_home

ALL = [(name, preset) for name, dataset in data.DATASETS.items() for preset in dataset.presets]

# (data set, preset): rows and class-1 rows (regression: mean label) of each group, in code order
COUNTS = {
    ("adult", "default"): {"Female": (16_192, 1_769), "Male": (32_650, 9_918)},
    ("adult", "fair-fate"): {"Female": (16_192, 1_769), "Male": (32_650, 9_918)},
    ("adult", "fedfair"): {"Female": (14_695, 1_669), "Male": (30_527, 9_539)},
    ("adult", "kffl"): {"Female": (14_695, 1_669), "Male": (30_527, 9_539)},
    ("adult", "kffl-regression"): {"Female": (14_695, 0.1136), "Male": (30_527, 0.3125)},
    ("adult", "e2fl"): {"Female": (14_695, 1_669), "Male": (30_527, 9_539)},
    ("compas", "fedfair"): {"African-American": (3_175, 1_514), "Caucasian": (2_103, 1_281)},
    ("compas", "kffl"): {"Other": (4_069, 1_987), "Caucasian": (2_103, 822)},
    ("german", "default"): {"female": (310, 201), "male": (690, 499)},
    ("german", "kffl"): {"female": (310, 201), "male": (690, 499)},
}


def raw_bytes(home: Path, folder: str, name: str) -> bytes:
    path = home / folder / name
    return path.read_bytes() if path.is_file() else gzip.decompress(path.with_name(name + ".gz").read_bytes())


def raw(home: Path, folder: str, name: str) -> str:
    return raw_bytes(home, folder, name).decode()


def by_group(encoded: data.Encoded) -> dict[str, tuple[int, float]]:
    return {
        name: (int((encoded.s == code).sum()), float(encoded.y[encoded.s == code].sum()))
        for code, name in enumerate(encoded.group_names)
    }


@pytest.mark.parametrize(("name", "preset"), ALL)
@pytest.mark.sample(12)
def test_every_preset_has_the_rows_inputs_and_groups_it_declares(needs, load, name, preset):
    needs(name)
    encoded, chosen, frame, hashes = load(name, preset)
    bunch = data.DATASETS[name].bunch(chosen, frame, hashes)
    n = chosen.rows
    assert len(encoded.x) == len(encoded.y) == len(encoded.s) == len(bunch.frame) == n
    assert int(np.prod(encoded.x.shape[1:])) == chosen.inputs == len(encoded.feature_names)
    assert encoded.scale_columns.shape == (chosen.inputs,)
    assert encoded.group_names == chosen.groups
    assert (chosen.privileged is None) == (chosen.groups == ("all",)) or chosen.groups[-1] == chosen.privileged
    assert np.bincount(encoded.s, minlength=len(chosen.groups)).min() > 0
    assert encoded.x.dtype == np.float32
    assert np.isfinite(encoded.x.sum())
    if chosen.task == "classification":
        assert encoded.y.dtype == np.int64
        assert chosen.positive in (None, encoded.class_names[1])
        assert np.bincount(encoded.y).min() > 0
    else:
        assert encoded.y.dtype == np.float32
        assert 0 <= encoded.y.min() < encoded.y.max() <= 1
    if chosen.scaling == "minmax":
        assert (encoded.x.min(), encoded.x.max()) == (0, 1)
        assert not encoded.scale_columns.any()
    assert sum(chosen.split) == (n if max(chosen.split) > 1 else pytest.approx(1))
    assert chosen.sampled <= chosen.num_partitions
    if chosen.split_column:
        train = encoded.columns[chosen.split_column] == "train"
        assert (train.sum(), (~train).sum()) == (chosen.split[0], chosen.split[2])
    if chosen.natural:
        assert len(np.unique(encoded.columns[chosen.natural])) >= chosen.num_partitions

    assert list(bunch.data.columns) == bunch.feature_names == list(chosen.features)
    assert bunch.target.name == bunch.target_name == chosen.label
    assert len(bunch.sensitive) == n
    assert bunch.sensitive_names == [rule.column for rule in chosen.sensitive]
    assert set(bunch.source_hashes) == {file.name for file in data.DATASETS[name].files}
    for text in (bunch.description, bunch.citation, bunch.license, chosen.description):
        assert text


def entries(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a folder, with what changes when it is written."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in (folder, *sorted(folder.rglob("*")))}


def linked(home: Path, name: str, place: Path) -> Path:
    """A data home with links to the files of one data set, in folders of its own."""
    for file in data.DATASETS[name].files:
        found = where(file, home)
        assert found is not None
        (place / file.folder).mkdir(parents=True, exist_ok=True)
        (place / file.folder / found.name).symlink_to(found)
    return place


@pytest.mark.parametrize("name", {dataset.files[0].folder: name for name, dataset in data.DATASETS.items()}.values())
@pytest.mark.sample(3)
def test_loading_writes_nothing_into_the_data_home(needs, tmp_path, monkeypatch, name):
    """root may write in a read-only folder, so that the folder is compared with itself."""
    home = linked(needs(name), name, tmp_path / "home")
    monkeypatch.setenv("EQUIFED_CACHE", str(tmp_path / "cache"))
    before = entries(home)
    rows = {"rows": 2000} if name != "mnist" else {"rows": 700, "partition": ef.partition.RotationGroups((2, 2), 50)}
    first = ef.load(name, home=home, **rows)
    kept = entries(tmp_path / "cache") if name == "mnist" else {}
    assert (name == "mnist") == any(path.endswith(".npy") for path in kept)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)  # whenever one likes
    again = ef.load(name, home=home, **rows)
    np.testing.assert_array_equal(first.rows.x, again.rows.x)
    assert entries(home) == before


def test_the_cache_is_not_in_the_data_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("EQUIFED_CACHE", "EQUIFED_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert data.data_home() == tmp_path / ".cache" / "equifed"
    assert cache_home() == tmp_path / ".cache" / "equifed-derived"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_home() == tmp_path / "elsewhere" / "equifed-derived"
    monkeypatch.setenv("EQUIFED_CACHE", "~/mine")
    assert cache_home() == tmp_path / "mine"


@pytest.mark.parametrize(("name", "preset"), list(COUNTS))
def test_groups_and_positives_are_the_published_ones(needs, load, name, preset):
    needs(name)
    encoded = load(name, preset)[0]
    found = by_group(encoded)
    assert list(found) == list(COUNTS[name, preset])
    for group, (rows, positives) in COUNTS[name, preset].items():
        assert found[group][0] == rows
        expected = positives * rows if encoded.task == "regression" else positives
        assert found[group][1] == pytest.approx(expected, rel=5e-4)


def test_adult_against_the_raw_lines(needs, load):
    home = needs("adult")
    rows = []
    for name in ("adult.data", "adult.test"):
        lines = raw(home, "adult", name).splitlines()
        rows += [[cell.strip(" .") for cell in line.split(",")] for line in lines if line.count(",") == 14]
    assert len(rows) == 48_842
    complete = [row for row in rows if "?" not in row]
    for preset, kept in (("fair-fate", rows), ("e2fl", complete)):
        expected = {}
        for sex in ("Female", "Male"):
            labels = [row[14] == ">50K" for row in kept if row[9] == sex]
            expected[sex] = (len(labels), sum(labels))
        assert by_group(load("adult", preset)[0]) == expected
    for sex, full, cleaned in (("Male", 0.3038, 0.3125), ("Female", 0.1093, 0.1136)):
        for preset, rate in (("fair-fate", full), ("e2fl", cleaned)):
            n, positives = by_group(load("adult", preset)[0])[sex]
            assert positives / n == pytest.approx(rate, abs=5e-5)

    encoded, chosen, *_ = load("adult", "fair-fate")
    for column in (1, 3, 13):  # workclass, education, native country: "?" is the first category
        known = sorted({row[column] for row in rows})
        codes = np.array([known.index(row[column]) for row in rows]) / (len(known) - 1)
        np.testing.assert_allclose(encoded.x[:, column], codes, atol=1e-6)
    ages = np.array([int(row[0]) for row in rows])
    np.testing.assert_allclose(encoded.x[:, 0], (ages - 17) / 73, atol=1e-6)
    assert chosen.sensitive_as_input
    assert not load("adult", "e2fl")[1].sensitive_as_input


def test_e2fl_adult_fits_the_papers_table_3(needs, load):
    """Its rates by sex are those of the rows without missing values, up to its unstated split."""
    needs("adult")
    encoded, _, frame, _ = load("adult", "e2fl")
    male = encoded.group_names.index("Male")
    assert (encoded.s == male).mean() == pytest.approx(0.675, abs=5e-4)
    assert 0.308 < encoded.y[encoded.s == male].mean() < 0.314
    assert encoded.y[encoded.s != male].mean() == pytest.approx(0.113, abs=1e-3)
    assert frame["split"].value_counts().to_dict() == {"train": 30_162, "test": 15_060}


def test_compas_against_the_raw_lines(needs, load):
    home = needs("compas")
    rows = list(csv.DictReader(io.StringIO(raw(home, "compas", "compas-scores-two-years.csv"))))
    assert len(rows) == 7_214
    kept = [
        row
        for row in rows
        if row["days_b_screening_arrest"]
        and abs(int(row["days_b_screening_arrest"])) <= 30
        and row["is_recid"] != "-1"
        and row["c_charge_degree"] != "O"
        and row["score_text"] != "N/A"
    ]
    assert len(kept) == 6_172
    described = [row for row in kept if row["c_charge_desc"]]
    for preset, part in (("default", kept), ("fair-fate", described)):
        expected = {}
        for group, white in (("Other", False), ("Caucasian", True)):
            clean = [row["two_year_recid"] == "0" for row in part if (row["race"] == "Caucasian") == white]
            expected[group] = (len(clean), sum(clean))
        assert by_group(load("compas", preset)[0]) == expected
    encoded, chosen, *_ = load("compas", "fair-fate")
    charges = sorted({row["c_charge_desc"] for row in described})
    column = chosen.features.index("c_charge_desc")
    codes = np.array([charges.index(row["c_charge_desc"]) for row in described]) / (len(charges) - 1)
    np.testing.assert_allclose(encoded.x[:, column], codes, atol=1e-6)
    # the race input is the group code itself: Caucasian or not
    np.testing.assert_array_equal(encoded.x[:, chosen.features.index("caucasian")], encoded.s)
    np.testing.assert_array_equal(encoded.s, [row["race"] == "Caucasian" for row in described])
    rates = {name: 1 - positives / n for name, (n, positives) in by_group(load("compas", "fedfair")[0]).items()}
    assert rates == {
        "African-American": pytest.approx(0.523, abs=5e-4),
        "Caucasian": pytest.approx(0.391, abs=5e-4),
    }


def test_german_is_decoded(needs, load):
    home = needs("german")
    encoded, _, frame, _ = load("german", "default")
    rows = [line.split() for line in raw(home, "german", "german.data").splitlines()]
    good = {"female": [0, 0], "male": [0, 0]}
    for row in rows:
        sex = "female" if row[8] in ("A92", "A95") else "male"
        good[sex][0] += 1
        good[sex][1] += row[20] == "1"
    assert by_group(encoded) == {sex: tuple(counts) for sex, counts in good.items()}
    assert frame.isna().sum().sum() == 0
    assert frame.loc[0, "purpose"] == "radio or television"
    assert not any(frame[column].astype(str).str.fullmatch(r"A\d+").any() for column in frame)
    assert not any("personal_status" in name for name in encoded.feature_names)


def test_law_rates_and_grades(needs, load):
    home = needs("law")
    rows = list(csv.DictReader(io.StringIO(raw(home, "law", "law_school_clean.csv"))))
    expected = {}
    for race in ("Non-White", "White"):
        passed = [float(row["pass_bar"]) for row in rows if row["race"] == race]
        expected[race] = (len(passed), sum(passed))
    for preset in ("default", "fair-fate"):
        assert by_group(load("law", preset)[0]) == expected
    assert expected["White"][1] / expected["White"][0] == pytest.approx(0.921, abs=5e-4)
    assert expected["Non-White"][1] / expected["Non-White"][0] == pytest.approx(0.723, abs=5e-4)
    plain = load("law", "fair-fate")[0]
    np.testing.assert_allclose(plain.x[:, 2], [float(row["lsat"]) for row in rows])
    grades = load("law", "kffl")[0]
    np.testing.assert_allclose(grades.y, [float(row["ugpa"]) / 4 for row in rows], rtol=1e-6)
    assert "ugpa" not in grades.feature_names


def test_dutch_rates(needs, load):
    home = needs("dutch")
    rows = list(csv.DictReader(io.StringIO(raw(home, "dutch", "dutch.csv"))))
    expected = {}
    for sex in ("female", "male"):
        high = [row["occupation"] == "1" for row in rows if row["sex"] == sex]
        expected[sex] = (len(high), sum(high))
    assert by_group(load("dutch", "fair-fate")[0]) == by_group(load("dutch", "default")[0]) == expected
    assert expected["male"][1] / expected["male"][0] == pytest.approx(0.626, abs=5e-4)
    assert expected["female"][1] / expected["female"][0] == pytest.approx(0.327, abs=5e-4)


def test_drug_is_decoded(needs, load):
    home = needs("drug")
    rows = [line.split(",") for line in raw(home, "drug", "drug_consumption.data").split()]
    expected = {}
    for group, white in (("non-white", False), ("white", True)):
        never = [row[31] == "CL0" for row in rows if (row[5] == "-0.31685") == white]
        expected[group] = (len(never), sum(never))
    encoded, _, frame, _ = load("drug", "fedfair")
    assert by_group(encoded) == expected
    assert expected["white"][0] == 1_720
    assert frame.isna().sum().sum() == 0
    assert frame["gender"].value_counts().to_dict() == {"male": 943, "female": 942}


@pytest.mark.parametrize(
    ("name", "file", "yes"),
    [("bank", "bank-full.csv", 5_289), ("bank_additional", "bank-additional-full.csv", 4_640)],
)
def test_bank_counts(needs, load, name, file, yes):
    home = needs(name)
    rows = list(csv.DictReader(io.StringIO(raw(home, "bank", file)), delimiter=";"))
    expected = {}
    for group, old in (("under 25", False), ("25 or older", True)):
        bought = [row["y"] == "yes" for row in rows if (int(row["age"]) >= 25) == old]
        expected[group] = (len(bought), sum(bought))
    encoded = load(name, "default")[0]
    assert by_group(encoded) == expected
    assert encoded.y.sum() == yes
    assert not any(column.startswith("age") for column in encoded.feature_names)


def test_communities_against_the_raw_lines(needs, load):
    home = needs("communities")
    rows = [line.split(",") for line in raw(home, "communities", "communities.data").split("\n") if line]
    encoded, _, frame, _ = load("communities", "kffl")
    np.testing.assert_allclose(encoded.y, [float(row[127]) for row in rows], rtol=1e-6)
    white = np.array([float(row[8]) for row in rows])
    np.testing.assert_array_equal(encoded.s, white >= 0.5)
    complete = [i for i in range(5, 127) if all(row[i] != "?" for row in rows) and i != 8]
    np.testing.assert_allclose(encoded.x, [[float(row[i]) for i in complete] for row in rows], rtol=1e-6)
    names = home / "communities" / "communities.names"
    if names.is_file():
        lines = names.read_text().splitlines()
        declared = [line.split()[1] for line in lines if line.startswith("@attribute")]
        assert list(frame.columns) == declared


def test_acs_income_against_the_raw_table(needs, load):
    home = needs("acs_income")
    table = pd.read_parquet(home / "acs" / acs.INCOME_FILE.name, columns=["SEX", "Y", "AGEP", "OCCP", "STATE"])
    encoded, chosen, frame, _ = load("acs_income", "sffl")
    np.testing.assert_array_equal(encoded.y, table["Y"])
    np.testing.assert_array_equal(encoded.s, table["SEX"] == 1)
    np.testing.assert_array_equal(encoded.x[:, chosen.features.index("OCCP")], table["OCCP"])
    assert len(np.unique(encoded.columns["STATE"])) == 46
    assert by_group(encoded) == {"Female": (538_547, 150_050), "Male": (583_347, 257_632)}
    in_wyoming = (table["STATE"] == "WY").to_numpy()
    assert (encoded.columns["STATE"] == "WY").sum() == in_wyoming.sum() == 3_064
    assert (frame["STATE"].cat.categories == sorted(table["STATE"].unique())).all()


@pytest.mark.parametrize(
    ("name", "column", "value"), [("acs_employment", "ESR", 1), ("acs_health_insurance", "HINS2", 1)]
)
def test_acs_people_against_the_raw_table(needs, load, name, column, value):
    home = needs(name)
    table = pd.read_parquet(home / "acs" / acs.PEOPLE_FILE.name, columns=[column, "SEX", "AGEP", "MIL"])
    encoded, chosen, *_ = load(name, "sffl")
    np.testing.assert_array_equal(encoded.y, table[column] == value)
    np.testing.assert_array_equal(encoded.s, table["SEX"] == 1)
    np.testing.assert_array_equal(encoded.x[:, chosen.features.index("MIL")], table["MIL"].fillna(0))
    assert len(np.unique(encoded.columns["STATE"])) == 14


def census_zip(people: pd.DataFrame) -> bytes:
    """A state's archive as the Census Bureau packs it: the data, and a page of documentation."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ACS2018_PUMS_README.pdf", b"...")
        archive.writestr("psam_p56.csv", people.assign(RT="P", PWGTP1=1).to_csv(index=False))
    return stream.getvalue()


def empty_zip() -> bytes:
    stream = io.BytesIO()
    zipfile.ZipFile(stream, "w").close()
    return stream.getvalue()


def test_acs_files_are_built_from_the_census_archives(needs):
    home = needs("acs_income")
    needs("acs_employment")
    state = [("STATE", "==", "WY")]
    people = pd.read_parquet(home / "acs" / acs.PEOPLE_FILE.name, filters=state)
    asked = []

    def download(address: str) -> bytes:
        asked.append(address)
        return census_zip(people.drop(columns="STATE"))

    built = pd.read_parquet(io.BytesIO(acs.build_income(download, states=["WY"])))
    expected = pd.read_parquet(home / "acs" / acs.INCOME_FILE.name, filters=state)
    assert asked == [f"{acs.FOLDER}/csv_pwy.zip"]
    assert len(built) == 3_064
    assert list(built.columns) == list(expected.columns)
    pd.testing.assert_frame_equal(built.astype({"STATE": str}), expected.astype({"STATE": str}), check_dtype=False)
    again = pd.read_parquet(io.BytesIO(acs.build_people(download, states=["WY"])))
    pd.testing.assert_frame_equal(again, people, check_dtype=False, check_categorical=False)

    with pytest.raises(DataError, match="holds 0 person files"):
        acs.person_records("WY", lambda address: empty_zip())
    contents = {acs.PEOPLE_FILE.name: acs.build_people(download, states=["WY"])}
    frame = data.DATASETS["acs_employment"].read(contents)
    assert (frame["employed"] == "employed").sum() == (people["ESR"] == 1).sum()


def test_the_states_of_the_acs_files(needs):
    home = needs("acs_income")
    states = pd.read_parquet(home / "acs" / acs.INCOME_FILE.name, columns=["STATE"])["STATE"]
    assert set(states.unique()) == set(acs.STATES)
    assert len(acs.STATES) == 46


def test_mnist_against_the_raw_bytes(needs, load):
    home = needs("mnist")
    encoded, chosen, frame, _ = load("mnist", "default")
    assert encoded.x.shape == (70_000, 1, 28, 28)
    content = raw_bytes(home, "mnist", "t10k-images-idx3-ubyte")
    first = np.frombuffer(content, np.uint8, count=784, offset=16).reshape(28, 28)
    np.testing.assert_allclose(encoded.x[60_000, 0], first / np.float32(255))
    assert np.bincount(encoded.y[:60_000]).tolist() == [
        *(5_923, 6_742, 5_958, 6_131, 5_842),
        *(5_421, 5_918, 6_265, 5_851, 5_949),
    ]
    assert (encoded.columns["split"][:60_000] == "train").all()
    assert encoded.class_names == tuple("0123456789")
    assert frame[list(chosen.features)].shape == (70_000, 784)
    assert chosen.image == (1, 28, 28)


def test_mnist_csv_becomes_the_idx_bytes():
    header = ",".join(["label", *(f"{r}x{c}" for r in range(28) for c in range(28))])
    rows = [[7, *([0] * 783), 255], [3, *([1] * 784)]]
    content = (header + "\r\n" + "\r\n".join(",".join(map(str, row)) for row in rows) + "\r\n").encode()
    assert mnist.labels_from_csv(content) == struct.pack(">II", 2049, 2) + bytes([7, 3])
    images = mnist.idx(mnist.images_from_csv(content))
    assert images.shape == (2, 28, 28)
    assert (images[0].sum(), images[0, 27, 27], images[1].sum()) == (255, 255, 784)
    with pytest.raises(DataError, match="idx"):
        mnist.idx(b"\x00\x01\x08\x01\x00\x00\x00\x00")


def test_bank_is_rebuilt_byte_by_byte_from_shuffled_parts(needs):
    home = needs("bank")
    original = raw(home, "bank", "bank-full.csv")
    table = list(csv.reader(io.StringIO(original), delimiter=";"))
    order = np.random.default_rng(0).permutation(len(table) - 1)
    parts = []
    for places in (order[:30_000], order[30_000:]):
        stream = io.StringIO()
        writer = csv.writer(stream)
        writer.writerow(["", *table[0][:-1], "deposit"])
        writer.writerows([place, *table[place + 1]] for place in places.tolist())
        parts.append(gzip.compress(stream.getvalue().encode(), compresslevel=1))
    assert tables.from_shuffled_parts(*parts) == original.encode()


def test_the_fetch_functions_are_the_registry(needs):
    for name in data.DATASETS:
        assert callable(getattr(data, f"fetch_{name}"))
    home = needs("german")
    bunch = data.fetch_german(home=home)
    assert bunch["frame"] is bunch.frame
    assert "frame" in dir(bunch)
    with pytest.raises(AttributeError, match="nothing"):
        _ = bunch.nothing
    assert bunch.sensitive.value_counts().to_dict() == {"male": 690, "female": 310}


def test_a_changed_preset_can_be_loaded(needs):
    home = needs("german")
    base = data.DATASETS["german"].presets["default"]
    encoded, chosen, *_ = data.DATASETS["german"].encode(replace(base, features=("age", "sex")), home)
    assert encoded.feature_names == ("age", "sex=female", "sex=male")
    assert chosen.sensitive_as_input
    with pytest.raises(DataError, match="must have 999 rows, but the files give 1000"):
        data.DATASETS["german"].encode(replace(base, rows=999), home)


def test_further_columns_are_carried_along(needs):
    home = needs("german")
    german = data.DATASETS["german"]
    loaded = german.encode(None, home, columns=["housing", "sex"])
    for name in ("housing", "sex"):
        np.testing.assert_array_equal(loaded.encoded.columns[name], loaded.frame[name])
    with pytest.raises(ConfigError, match=r"Unknown column of german 'houses'. Did you mean 'housing'"):
        german.encode(None, home, columns=["houses"])
    with pytest.raises(ConfigError, match=r"Unknown column of german 'lable'. Did you mean 'label'") as caught:
        german.encode(None, home, columns=["lable"])
    assert {"label", "group", "housing"} <= set(caught.value.allowed)


def test_unknown_names_list_the_known_and_the_closest():
    with pytest.raises(ConfigError, match="Did you mean 'compas'"):
        data.get_dataset("compass")
    with pytest.raises(ConfigError, match=r"preset of adult 'fairfate'. Did you mean 'fair-fate'"):
        data.get_dataset("adult").preset("fairfate")
    assert data.get_dataset("bank-additional").name == "bank_additional"


def test_describe_is_plain_data():
    for name in data.DATASETS:
        told = data.get_dataset(name).describe()
        assert json.loads(json.dumps(told)) == told
        assert next(iter(told["presets"])) == "default"
        assert {"title", "citation", "license", "presets", "files"} <= set(told)
    told = data.get_dataset("compas").describe()["presets"]["fair-fate"]
    assert (told["rows"], told["columns"], told["clients"], told["clients_per_round"]) == (6_167, 10, 10, 3)
    assert (told["groups"], told["positive"]) == (["Other", "Caucasian"], "did not recidivate")


def test_every_preset_says_what_its_label_means():
    """All but images of several classes; and another positive class means something else."""
    for name, dataset in data.DATASETS.items():
        meanings = {}
        for preset in dataset.presets.values():
            assert bool(preset.meaning) == (not preset.image), (name, preset.name)
            meanings.setdefault((preset.task, preset.label, preset.positive), set()).add(preset.meaning)
        assert all(len(said) == 1 for said in meanings.values()), name
        assert len(set.union(*meanings.values())) == len(meanings), name


def test_importing_the_data_package_does_not_import_torch():
    """In an interpreter where torch cannot be imported, below a stand-in for the whole package."""
    code = (
        "import sys, types; package = types.ModuleType('equifed'); package.__path__ = [sys.argv[1]];"
        "sys.modules.update(equifed=package, torch=None); import equifed.data"
    )
    root = str(Path(data.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
