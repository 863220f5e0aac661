"""Dutch census of 2001: has a person a prestigious occupation?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, names, presets
from equifed.data.download import File, Url
from equifed.data.schema import Sensitive

FILE = File(
    folder="dutch",
    name="dutch.csv",
    sha256="c0e1df7e2ca07fa84aa99b5565c7b782a381e2fab377648a6d920174d04ce090",
    urls=(Url("https://raw.githubusercontent.com/tailequy/fairness_dataset/main/experiments/data/dutch.csv"),),
)

CODES = names("""
    household_position household_size prev_residence_place citizenship country_birth edu_level economic_status
    cur_eco_activity marital_status
""")
FEATURES = ("sex", "age", *CODES)  # the age is in bands of five years, 4 to 15
LABEL = "occupation"


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    frame = pd.read_csv(io.BytesIO(contents["dutch.csv"]))
    frame[LABEL] = frame[LABEL].map({1: "high level", 0: "low level"})
    return frame


DEFAULT = Preset(
    name="default",
    description="Census codes one-hot, sex not an input.",
    rows=60_420,
    inputs=48,
    groups=("female", "male"),
    label=LABEL,
    positive="high level",
    meaning="the person has a high-level occupation",
    features=("age", *CODES),
    sensitive=(Sensitive(column="sex"),),
    categorical=CODES,
)
DUTCH = Dataset(
    name="dutch",
    title="Dutch census 2001",
    files=(FILE,),
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            DEFAULT,
            name="fair-fate",
            description="11 columns, the census codes as numbers, scaled to 0..1; sex is an input.",
            inputs=11,
            features=FEATURES,
            encoding="ordinal",
            scaling="minmax",
            num_partitions=20,
            clients_per_round=6,
            categorical=(),
        ),
    ),
    description="60,420 people of the Dutch census of 2001 with 11 columns of census codes.",
    citation="Statistics Netherlands and Minnesota Population Center (2001). Dutch Virtual Census, "
    "via IPUMS. Extract: Le Quy, T. et al. (2022). A survey on datasets for fairness-aware machine learning. "
    "doi:10.1002/widm.1452",
    license="IPUMS terms of use; distributed for research",
)
