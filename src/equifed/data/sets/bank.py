"""Bank marketing, UCI data set 222: does a client subscribe a term deposit after a telephone campaign?

`bank` is the first release (17 columns), `bank_additional` the later one with five economic indicators.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, kffl, names, presets
from equifed.data.download import File, Url, Wheel
from equifed.data.schema import Sensitive

ARCHIVE = "https://archive.ics.uci.edu/static/public/222/bank+marketing.zip"
OLD_FOLDER = "https://archive.ics.uci.edu/ml/machine-learning-databases/00222"
LABEL = "y"

FIRST = names("job marital education default housing loan contact month poutcome")
FIRST_NUMBERS = names("balance day duration campaign pdays previous")
LATER = (*FIRST, "day_of_week")
LATER_NUMBERS = names(
    "duration campaign pdays previous emp.var.rate cons.price.idx cons.conf.idx euribor3m nr.employed"
)


def from_shuffled_parts(*parts: bytes) -> bytes:
    """The upstream bytes from two shuffled parts whose first column is the row's place in the original."""
    rows: dict[int, list[str]] = {}
    header: list[str] = []
    for part in parts:
        reader = csv.reader(io.StringIO(gzip.decompress(part).decode()))
        header = next(reader)[1:]
        rows |= {int(row[0]): row[1:] for row in reader}
    header[-1] = LABEL
    is_text = [name not in ("age", *FIRST_NUMBERS) for name in header]
    lines = [";".join(f'"{name}"' for name in header)]
    for place in sorted(rows):
        cells = zip(rows[place], is_text, strict=True)
        lines.append(";".join(f'"{cell}"' if text else cell for cell, text in cells))
    return ("\n".join(lines) + "\n").encode()


BANK_FILE = File(
    folder="bank",
    name="bank-full.csv",
    sha256="d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
    urls=(
        Url(ARCHIVE, ("bank.zip", "bank-full.csv")),
        Url(f"{OLD_FOLDER}/bank.zip", ("bank-full.csv",)),
    ),
    wheel=Wheel(
        "hypergbm==0.3.2",
        tuple(f"hypergbm/examples/datasets/Bank/{part}.csv.gz" for part in ("train", "test")),
        from_shuffled_parts,
    ),
)
ADDITIONAL = "bank-additional/bank-additional-full.csv"
ADDITIONAL_FILE = File(
    folder="bank",
    name="bank-additional-full.csv",
    sha256="74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
    urls=(
        Url(ARCHIVE, ("bank-additional.zip", ADDITIONAL)),
        Url(f"{OLD_FOLDER}/bank-additional.zip", (ADDITIONAL,)),
    ),
)


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    (content,) = contents.values()
    return pd.read_csv(io.BytesIO(content), sep=";", keep_default_na=False)


_BANK = Preset(
    name="default",
    description="One-hot inputs; groups are under 25, and 25 or older; age is not an input.",
    rows=45_211,
    inputs=50,
    groups=("under 25", "25 or older"),
    label=LABEL,
    positive="yes",
    meaning="the client subscribes to a term deposit",
    features=(*FIRST, *FIRST_NUMBERS),
    sensitive=(Sensitive(column="age", threshold=25, below="under 25", at_least="25 or older"),),
)
BANK = Dataset(
    name="bank",
    title="Bank marketing (first release)",
    files=(BANK_FILE,),
    read=read,
    presets=presets(_BANK),
    description="45,211 calls of a Portuguese bank, 2008 to 2010, with 16 columns.",
    citation="Moro, S., Rita, P. and Cortez, P. (2014). Bank Marketing. UCI Machine Learning Repository. "
    "doi:10.24432/C5K306",
    license="CC BY 4.0",
)

_BANK_ADDITIONAL = replace(_BANK, rows=41_188, inputs=62, features=(*LATER, *LATER_NUMBERS))
BANK_ADDITIONAL = replace(
    BANK,
    name="bank_additional",
    title="Bank marketing (with economic indicators)",
    files=(ADDITIONAL_FILE,),
    presets=presets(
        _BANK_ADDITIONAL,
        replace(
            kffl(_BANK_ADDITIONAL),
            description="One-hot inputs without age (the paper's 64 count two age groups), 4 clients.",
        ),
    ),
    description="41,188 calls of a Portuguese bank, 2008 to 2010, with 20 columns.",
)
