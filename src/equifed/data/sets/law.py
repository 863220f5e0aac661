"""Law school (LSAC bar passage study): does a student pass the bar at the first attempt?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, kffl, presets
from equifed.data.download import File, Url, Wheel
from equifed.data.schema import Sensitive

NAME = "law_school_clean.csv"
FILE = File(
    folder="law",
    name=NAME,
    sha256="23c1b173f3480beb7afc4957b107a9917dfc4a8dc9d87ea6034ec35222152452",
    urls=(Url(f"https://raw.githubusercontent.com/tailequy/fairness_dataset/main/experiments/data/{NAME}"),),
    wheel=Wheel("virny==0.6.0", (f"virny/datasets/data/{NAME}",)),
)

FEATURES = (
    "decile1b",  # decile of the grades in the first year
    "decile3",  # in the third
    "lsat",
    "ugpa",  # undergraduate grade point average, up to 4
    "zfygpa",  # standardised grades of the first year
    "zgpa",  # and over all years
    "fulltime",  # 1 full time, 2 part time
    "fam_inc",  # family income, in fifths
    "male",
    "tier",  # of the law school
    "race",
)
LABEL = "pass_bar"
WITHOUT_RACE = tuple(name for name in FEATURES if name != "race")


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    frame = pd.read_csv(io.BytesIO(contents[NAME]))
    frame[LABEL] = frame[LABEL].map({1: "passed", 0: "failed"})
    return frame


DEFAULT = Preset(
    name="default",
    description="Standardised inputs, race not an input.",
    rows=20_798,
    inputs=10,
    groups=("Non-White", "White"),
    label=LABEL,
    positive="passed",
    meaning="the student passes the bar examination",
    features=WITHOUT_RACE,
    sensitive=(Sensitive(column="race"),),
)
LAW = Dataset(
    name="law",
    title="Law school bar passage",
    files=(FILE,),
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            DEFAULT,
            name="fair-fate",
            description="11 columns as they are, race as a code among them; nothing is scaled.",
            inputs=11,
            features=FEATURES,
            encoding="ordinal",
            scaling="none",
            num_partitions=12,
            clients_per_round=4,
        ),
        replace(
            kffl(DEFAULT),
            description="Regression: undergraduate GPA over 4, from the other columns without race "
            "(the paper has 20,649 rows of another extract).",
            inputs=11,
            label="ugpa",
            features=(*(name for name in WITHOUT_RACE if name != "ugpa"), LABEL),
            task="regression",
            label_range=(0.0, 4.0),
            positive=None,
            meaning="the undergraduate grade point average, as a share of 4",
        ),
    ),
    description="20,798 law students of 1991, with their grades, law school tier and bar examination.",
    citation="Wightman, L. F. (1998). LSAC National Longitudinal Bar Passage Study. Law School Admission "
    "Council. Extract: Le Quy, T. et al. (2022). A survey on datasets for fairness-aware machine learning. "
    "doi:10.1002/widm.1452",
    license="none stated; distributed for research",
)
