"""Why some numbers of FAIR-FATE's tables are not repeated within noise."""

from equifed.experiments import Numbers, Reason

REASONS = (
    Reason(
        "fedmom-beta",
        "The stated beta of 0.8 does not give the published figures; beta 0.9 gives SP .31, EO .58 and EQO .41, "
        "which fit.",
        (Numbers("table1", "adult", "sigma 0.5", "FedMom", "[SE]*"),),
    ),
    Reason(
        "some-partitions",
        "Fewer than the authors' ten partitions were run here, and at sigma 0.5 the mean depends on which ten they are "
        "more than on anything else.",
        (Numbers(place="sigma 0.5"),),
        when=lambda row: row.runs < 10,
    ),
    Reason(
        "degenerate",
        "Some runs predict one class for more than 99 % of a group, where one zero count makes a published ratio 0: "
        "a few such runs of ten decide the mean, and which they are follows from initial weights and orders of batches "
        "that cannot be repeated.",
        (Numbers(),),
        when=lambda row: row.degenerate > 0,
    ),
)
