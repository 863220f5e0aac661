"""Why some numbers of E2FL's tables are not repeated within noise."""

from equifed.experiments import Reason

REASONS: tuple[Reason, ...] = ()
