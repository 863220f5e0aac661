"""American Community Survey, PUMS 2018 (one year): income, employment and health insurance by state.

The three tasks are those of folktables (Ding et al., 2021), with its columns, rows and labels; numbers are
the codes of the Census Bureau's data dictionary. What does not apply to a person (the employment of a child)
is 0, as folktables has it; where that happens 0 means nothing else, save in PINCP: no income.
"""

from __future__ import annotations

import functools
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, kffl, names, presets
from equifed.data.download import Download, File
from equifed.data.schema import Sensitive
from equifed.errors import DataError

FOLDER = "https://www2.census.gov/programs-surveys/acs/data/pums/2018/1-Year"
CITATION = (
    "US Census Bureau (2019). American Community Survey, Public Use Microdata Sample 2018, 1-Year. "
    "Tasks: Ding, F., Hardt, M., Miller, J. and Schmidt, L. (2021). Retiring Adult: New Datasets for Fair "
    "Machine Learning. NeurIPS."
)
LICENSE = "public domain (US government work)"

INCOME = names("AGEP COW SCHL MAR OCCP POBP RELP WKHP SEX RAC1P")
EMPLOYMENT = names("AGEP SCHL MAR RELP DIS ESP CIT MIG MIL ANC NATIVITY DEAR DEYE DREM SEX RAC1P")
INSURANCE = names("""
    AGEP SCHL MAR SEX DIS ESP CIT MIG MIL ANC NATIVITY DEAR DEYE DREM RACAIAN RACASN RACBLK RACNH RACPI RACSOR
    RACWHT PINCP ESR ST FER
""")
PERSON = names("""
    ADJINC AGEP ANC CIT COW DEAR DEYE DIS DREM ESP ESR FER GCL HICOV HINS1 HINS2 HINS3 HINS4 HISP JWMNP JWTR MAR MIG
    MIL NATIVITY OCCP PINCP POBP POVPIP POWPUMA PRIVCOV PUBCOV PUMA PWGTP RAC1P RACAIAN RACASN RACBLK RACNH RACPI
    RACSOR RACWHT RELP SCHL SERIALNO SEX SPORDER ST WKHP
""")
SMALL_STATES = names("DE HI ID ME MT ND NE NH NM RI SD VT WV WY")
STATES = names("""
    AK AL AR AZ CO CT DE GA HI IA ID IL IN KS KY LA MA MD ME MI MN MO MS MT NC ND NE NH NJ NM NV OH OK OR PA RI SC
    SD TN UT VA VT WA WI WV WY
""")
SEX = (Sensitive(column="SEX"),)
GROUPS = ("Female", "Male")


def person_records(state: str, download: Download, columns: Sequence[str] = PERSON) -> pd.DataFrame:
    """One state's person file from the Census Bureau: the columns asked for, and the state."""
    content = download(f"{FOLDER}/csv_p{state.lower()}.zip")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [name for name in archive.namelist() if re.fullmatch(r"psam_p\d\d\.csv", name)]
        if len(members) != 1:
            raise DataError(f"The archive of {state} holds {len(members)} person files, not one.")
        with archive.open(members[0]) as stream:
            frame = pd.read_csv(stream, usecols=list(columns), dtype={"SERIALNO": str})
    return frame[list(columns)].assign(STATE=state)


def income_task(people: pd.DataFrame) -> pd.DataFrame:
    """folktables' ACSIncome: adults who worked and earned; the label is an income above 50,000 dollars."""
    kept = people[(people["AGEP"] > 16) & (people["PINCP"] > 100) & (people["WKHP"] > 0) & (people["PWGTP"] >= 1)]
    task = kept[list(INCOME)].astype("int16").assign(Y=(kept["PINCP"] > 50_000).astype("int8"))
    return task.assign(STATE=kept["STATE"]).reset_index(drop=True)


def build_income(download: Download, states: Sequence[str] = STATES) -> bytes:
    """The income task of these states, from the Census Bureau's files, as one Parquet file."""
    columns = (*INCOME, "PINCP", "PWGTP")
    parts = [income_task(person_records(state, download, columns)) for state in states]
    return _parquet(pd.concat(parts, ignore_index=True))


def build_people(download: Download, states: Sequence[str] = SMALL_STATES) -> bytes:
    """All person records of these states, from the Census Bureau's files, as one Parquet file."""
    return _parquet(pd.concat([person_records(state, download) for state in states], ignore_index=True))


def _parquet(frame: pd.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False)
    return stream.getvalue()


INCOME_FILE = File(
    folder="acs",
    name="acs_income_2018_46states.parquet",
    sha256="f5a279056d178bb85d41636e738d888cc2f3d4f98051626488bbda8d3febd211",
    build=build_income,
)
PEOPLE_FILE = File(
    folder="acs",
    name="acs_pums_2018_14states.parquet",
    sha256="6c110371182e6682d4ba69a552b433b8dac9ec5873c5e62b65f6c79eae733264",
    build=build_people,
)


def read_income(contents: Mapping[str, bytes]) -> pd.DataFrame:
    frame = pd.read_parquet(io.BytesIO(contents[INCOME_FILE.name]))
    frame["income"] = _words(frame.pop("Y") == 1, ">50K", "<=50K")
    return _with_words(frame)


def read_people(
    contents: Mapping[str, bytes], *, features: Sequence[str], code: str, label: str, yes: str, no: str
) -> pd.DataFrame:
    """One task on the person records: its columns, 0 where one does not apply, and as label whether `code` is 1."""
    columns = dict.fromkeys([*features, code, "STATE"])
    frame = pd.read_parquet(io.BytesIO(contents[PEOPLE_FILE.name]), columns=list(columns))
    answer = _words(frame[code] == 1, yes, no)
    frame = frame[[*features, "STATE"]].fillna(dict.fromkeys(features, 0))
    frame[label] = answer
    return _with_words(frame)


def _with_words(frame: pd.DataFrame) -> pd.DataFrame:
    frame["SEX"] = _words(frame["SEX"] == 1, "Male", "Female")
    frame["STATE"] = pd.Categorical(frame["STATE"].astype(str))
    return frame


def _words(is_yes: pd.Series[bool], yes: str, no: str) -> pd.Categorical[str]:
    return pd.Categorical.from_codes(is_yes.to_numpy().astype("int8"), pd.Index([no, yes]))


def _without_sex(features: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in features if name != "SEX")


_ACS_INCOME = Preset(
    name="default",
    description="46 states, one-hot codes except place of birth and occupation, sex not an input.",
    rows=1_121_894,
    inputs=43,
    groups=GROUPS,
    label="income",
    positive=">50K",
    meaning="the person earns more than 50,000 dollars a year",
    features=("AGEP", "COW", "SCHL", "MAR", "RELP", "WKHP", "RAC1P"),
    categorical=("COW", "MAR", "RELP", "RAC1P"),
    sensitive=SEX,
    num_partitions=46,
    natural="STATE",
)
ACS_INCOME = Dataset(
    name="acs_income",
    title="ACS income 2018 (folktables)",
    files=(INCOME_FILE,),
    read=read_income,
    presets=presets(
        _ACS_INCOME,
        replace(
            _ACS_INCOME,
            name="sffl",
            description="46 states, folktables' columns as numbers, sex not an input; one state per client, "
            "about 2,400 training and 1,600 test rows each.",
            inputs=9,
            features=_without_sex(INCOME),
            split=(1.0, 0.0, 0.0),
            client_test=0.4,
            num_partitions=20,
            categorical=(),
        ),
        replace(
            kffl(_ACS_INCOME),
            description="Pennsylvania, the largest state here (the paper has California: 195,665 rows), "
            "one-hot codes, sex not an input.",
            rows=68_308,
            inputs=799,
            features=_without_sex(INCOME),
            categorical=("COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "RAC1P"),
            where=(("STATE", ("PA",)),),
            natural=None,
        ),
    ),
    description="1,121,894 working adults of 46 US states (all but CA, FL, NY, TX), in the survey's codes.",
    citation=CITATION,
    license=LICENSE,
)


def _people_task(
    *,
    name: str,
    title: str,
    features: Sequence[str],
    numbers: Sequence[str],
    inputs: int,
    code: str,
    label: str,
    yes: str,
    no: str,
    meaning: str,
    description: str,
) -> Dataset:
    """A task on the person records. numbers: the features that are no codes; inputs: how many they are, encoded."""
    used = _without_sex(features)
    default = Preset(
        name="default",
        description="14 small states, one-hot codes, sex not an input.",
        rows=173_916,
        inputs=inputs,
        groups=GROUPS,
        label=label,
        positive=yes,
        meaning=meaning,
        features=used,
        categorical=tuple(feature for feature in used if feature not in numbers),
        sensitive=SEX,
        num_partitions=14,
        natural="STATE",
    )
    sffl = replace(
        default,
        name="sffl",
        description="14 small states (the paper has 20), folktables' columns as numbers, "
        "sex not an input; one state per client, about 2,400 training and 1,600 test rows each.",
        inputs=len(used),
        split=(1.0, 0.0, 0.0),
        client_test=0.4,
        categorical=(),
    )
    return Dataset(
        name=name,
        title=title,
        files=(PEOPLE_FILE,),
        read=functools.partial(read_people, features=features, code=code, label=label, yes=yes, no=no),
        presets=presets(default, sffl),
        description=description,
        citation=CITATION,
        license=LICENSE,
    )


ACS_EMPLOYMENT = _people_task(
    name="acs_employment",
    title="ACS employment 2018 (folktables)",
    features=EMPLOYMENT,
    numbers=("AGEP",),
    inputs=97,
    code="ESR",
    label="employed",
    yes="employed",
    no="not employed",
    meaning="the person has a civilian job and is at work",
    description="173,916 people of 14 small US states; the label is being employed, civilian, at work.",
)
ACS_HEALTH_INSURANCE = _people_task(
    name="acs_health_insurance",
    title="ACS health insurance 2018 (folktables)",
    features=INSURANCE,
    numbers=("AGEP", "PINCP"),
    inputs=109,
    code="HINS2",
    label="insurance",
    yes="bought directly",
    no="not",
    meaning="the person has bought health insurance directly from an insurer",
    description="173,916 people of 14 small US states; the label is health insurance bought from an insurer.",
)
