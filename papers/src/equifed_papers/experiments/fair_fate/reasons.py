"""Why some numbers of FAIR-FATE's tables are not repeated within noise."""

from equifed_papers.experiments import Numbers, Reason
from equifed_papers.experiments.variants import printed_rounded, repeats

REASONS = (
    Reason(
        "some-partitions",
        "Fewer than the authors' ten partitions were run here, and the published number is in the 95 % interval of "
        "ours: two standard errors, the measure of noise on this page, are less than the interval of so few runs.",
        (Numbers(),),
        when=lambda row: row.runs < 10 and row.low <= row.published <= row.high,
    ),
    Reason(
        "chance",
        "Initial weights and the order of batches cannot be the authors', and over partitions numbers vary widely: of "
        "528 equal means some 30 would be outside noise by chance. With the twenty next partitions of the authors' "
        "procedure this one is within it (and some that are within it here are not).",
        (Numbers(),),
        when=repeats("20-more-partitions"),
    ),
    printed_rounded(Numbers("table1")),
)
