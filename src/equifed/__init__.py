"""Fair federated learning that people can use."""

from equifed import methods, metrics, models, partition
from equifed.errors import ConfigError, DataError, EquifedError, EquifedWarning, RunError
from equifed.federation import Federation
from equifed.loading import load
from equifed.local import Local
from equifed.simulate import Result, simulate, sweep

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "EquifedError",
    "EquifedWarning",
    "Federation",
    "Local",
    "Result",
    "RunError",
    "__version__",
    "load",
    "methods",
    "metrics",
    "models",
    "partition",
    "simulate",
    "sweep",
]
