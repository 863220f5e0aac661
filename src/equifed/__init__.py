"""Fair federated learning that people can use.

    import equifed as ef

    fed = ef.load("compas", preset="fair-fate", partition=ef.partition.Dirichlet(num_partitions=10, alpha=0.5))
    res = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.MLP(hidden=(10,)), rounds=20, clients_per_round=3)
    res.summary()

Names are imported when they are first used, so that the command line starts without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from equifed import data, methods, metrics, models, partition, report, tracking
    from equifed.data import Columns, Holdout
    from equifed.errors import ConfigError, DataError, EquifedError, EquifedWarning, RunError
    from equifed.federation import Federation, Mapped, load, load_femnist
    from equifed.methods import postprocess
    from equifed.results.model import Model
    from equifed.results.result import Result
    from equifed.settings import Local, RunSettings
    from equifed.simulation import simulate
    from equifed.store import load_model, load_result, save_result
    from equifed.studies.api import compare, seek, sweep
    from equifed.target import Target
    from equifed.verdict import Comparison, Sought, answer

_HOMES = {
    **dict.fromkeys(("ConfigError", "DataError", "EquifedError", "EquifedWarning", "RunError"), "equifed.errors"),
    **dict.fromkeys(("Columns", "Holdout"), "equifed.data"),
    **dict.fromkeys(("Federation", "Mapped"), "equifed.federation"),
    "Local": "equifed.settings",
    "Result": "equifed.results.result",
    "RunSettings": "equifed.settings",
    "Target": "equifed.target",
    "load": "equifed.federation",
    "Model": "equifed.results.model",
    "load_model": "equifed.store",
    "load_result": "equifed.store",
    "save_result": "equifed.store",
    "load_femnist": "equifed.federation",
    "postprocess": "equifed.methods",
    **dict.fromkeys(("Comparison", "Sought", "answer"), "equifed.verdict"),
    **dict.fromkeys(("compare", "seek", "sweep"), "equifed.studies.api"),
    "simulate": "equifed.simulation",
}
_MODULES = ("data", "methods", "metrics", "models", "partition", "report", "tracking")

__all__ = [*_HOMES, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"equifed.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'equifed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
