"""The papers' experiments, with their published figures beside ours; carried out by `equifed reproduce`."""

EXPERIMENTS = {
    "fair-fate/table1": "accuracy and fairness of eleven methods at three levels of heterogeneity (COMPAS, Adult)",
    "fair-fate/figure3": "FAIR-FATE's trade-off between accuracy and fairness over MAX",
}
"""Name -> what it shows."""
