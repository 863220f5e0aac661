"""Why many numbers of SFFL's table are not repeated within noise."""

from equifed.experiments import Numbers, Reason

REASONS = (
    Reason(
        "own-models",
        "Clients with few of the four (label, sex) cells are easy for a mixture of models of their own: at small "
        "alpha ours are far more accurate than published, and fairer. The paper names neither the sample of each "
        "state nor its size in rows; the level of FedAvg, which has one model for all, is the published one.",
        (
            Numbers("*", "*", "alpha 0.1,*", "FedEM"), Numbers("*", "*", "alpha 0.1,*", "SFFL"),
            Numbers("*", "*", "alpha 0.5,*", "FedEM"), Numbers("*", "*", "alpha 0.5,*", "SFFL"),
            Numbers("*", "*", "alpha 1,*", "FedEM"), Numbers("*", "*", "alpha 1,*", "SFFL"),
        ),
    ),
    Reason(
        "states",
        "The paper draws on all states; here are 14 small ones, the largest of them split for 20 clients.",
        (Numbers(dataset="acs_employment"), Numbers(dataset="acs_health_insurance")),
    ),
)  # fmt: skip
