"""Why some numbers of FAIR-FATE's tables are not repeated within noise."""

from equifed.experiments import Numbers, Reason

REASONS = (
    Reason(
        "some-partitions",
        "Fewer than the authors' ten partitions were run here, and the published number is in the 95 % interval of "
        "ours: two standard errors, the measure of noise on this page, are less than the interval of so few runs.",
        (Numbers(),),
        when=lambda row: row.runs < 10 and row.low <= row.published <= row.high,
    ),
)
