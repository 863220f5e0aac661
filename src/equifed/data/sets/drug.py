"""Drug consumption, UCI data set 373: has a person ever used volatile substances?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, names, presets
from equifed.data.download import File, uci
from equifed.data.schema import Sensitive

NAME = "drug_consumption.data"
FILE = File(
    folder="drug",
    name=NAME,
    sha256="67cba56cd0bd43a4fd6d9bd34cfe6f614f65d88e63b5907e5a8d6fd4f7758232",
    urls=uci("373/drug+consumption+quantified.zip", "00373", NAME),
)

FEATURES = names("""
    age gender education country ethnicity neuroticism extraversion openness agreeableness conscientiousness
    impulsiveness sensation_seeking
""")
# semeron does not exist: it catches over-claimers; vsa: volatile substance abuse
DRUGS = names("""
    alcohol amphetamines amyl_nitrite benzodiazepine caffeine cannabis chocolate cocaine crack ecstasy heroin ketamine
    legal_highs lsd methadone mushrooms nicotine semeron vsa
""")
# the file holds these categories as numbers with five decimals
MEANING = {
    "age": {
        -0.95197: "18-24",
        -0.07854: "25-34",
        0.49788: "35-44",
        1.09449: "45-54",
        1.82213: "55-64",
        2.59171: "65+",
    },
    "gender": {0.48246: "female", -0.48246: "male"},
    "education": {
        -2.43591: "left school before 16",
        -1.73790: "left school at 16",
        -1.43719: "left school at 17",
        -1.22751: "left school at 18",
        -0.61113: "some college, no certificate",
        -0.05921: "professional certificate",
        0.45468: "university degree",
        1.16365: "master's degree",
        1.98437: "doctorate",
    },
    "country": {
        -0.09765: "Australia",
        0.24923: "Canada",
        -0.46841: "New Zealand",
        -0.28519: "other",
        0.21128: "Republic of Ireland",
        0.96082: "UK",
        -0.57009: "USA",
    },
    "ethnicity": {
        -0.50212: "Asian",
        -1.10702: "Black",
        1.90725: "mixed Black/Asian",
        0.12600: "mixed White/Asian",
        -0.22166: "mixed White/Black",
        0.11440: "other",
        -0.31685: "White",
    },
}
LABEL = "volatile_substances"


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    """The quantified categories as words, and the label "ever used" out of the seven frequencies CL0..CL6."""
    frame = pd.read_csv(io.BytesIO(contents[NAME]), names=["id", *FEATURES, *DRUGS], index_col="id")
    for column, words in MEANING.items():
        frame[column] = frame[column].map(words)
    frame[LABEL] = (frame["vsa"] != "CL0").map({True: "used", False: "never used"})
    return frame.reset_index(drop=True)


DEFAULT = Preset(
    name="default",
    description="One-hot categories and personality scores, ethnicity not an input.",
    rows=1_885,
    inputs=31,
    groups=("non-white", "white"),
    label=LABEL,
    positive="never used",
    meaning="the person has never used volatile substances",
    features=tuple(name for name in FEATURES if name != "ethnicity"),
    sensitive=(Sensitive(column="ethnicity", groups={"White": "white"}, other="non-white"),),
    num_partitions=5,
)
DRUG = Dataset(
    name="drug",
    title="Drug consumption",
    files=(FILE,),
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            DEFAULT,
            name="fedfair",
            description="All 12 columns, ethnicity among them; 1,600 rows in 10 clients.",
            inputs=38,
            features=FEATURES,
            split=(1_600, 0, 285),
            num_partitions=10,
            alpha=None,
        ),
    ),
    description="1,885 people with personality scores and their use of 18 drugs.",
    citation="Fehrman, E., Egan, V. and Mirkes, E. (2015). Drug Consumption (Quantified). UCI Machine "
    "Learning Repository. doi:10.24432/C5TC7S",
    license="CC BY 4.0",
)
