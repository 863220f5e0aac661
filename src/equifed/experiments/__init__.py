"""The papers' experiments, with their published figures beside ours; carried out by `equifed reproduce`."""

EXPERIMENTS = {
    "fair-fate/table1": "accuracy and fairness of eleven methods at three levels of heterogeneity (COMPAS, Adult)",
    "fair-fate/figure3": "FAIR-FATE's trade-off between accuracy and fairness over MAX",
    "fedfair/table1": "accuracy and fairness of FedFair and six baselines (COMPAS, DRUG, Adult)",
    "fedfair/figure2": "what FedFair's epsilon does on training and test rows",
    "fedfair/figure4": "FedFair and LCO when clients drop out",
    "kffl/table6": "accuracy and fairness of KFFL and its baselines on COMPAS, Bank, ACS and German",
    "kffl/table7": "the same with Adult",
    "kffl/figure3": "trade-offs of KFFL, its baselines and pooled training on COMPAS",
    "kffl/figure4": "the same on Adult",
    "kffl/table4": "KFFL's regression on Communities and Crime, IID",
    "kffl/table9": "the same with KFFL-TD",
    "kffl/table10": "KFFL's regression on Communities and Crime, non-IID",
    "kffl/table13": "KFFL-TD's regression on Adult, IID",
    "kffl/table14": "KFFL's regression on Adult, non-IID",
    "kffl/table15": "KFFL's regression on Adult, IID",
    "e2fl/table1": "equality, equity and bytes of E2FL and its baselines on FairMNISTRotate",
    "e2fl/table5": "how well clustering rankings finds the clients' groups, by layer",
    "e2fl/figure4": "how often clients find their group among the groups' masks, over the rounds",
}
"""Name -> what it shows."""
