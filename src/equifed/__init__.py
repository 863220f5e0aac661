"""Fair federated learning that people can use.

    import equifed as ef
    fed = ef.load("compas", preset="fair-fate", partition=ef.partition.Dirichlet(num_partitions=10, alpha=0.5))
    res = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.MLP(hidden=(10,)), rounds=20, clients_per_round=3)
    res.summary()
"""

from equifed import methods, metrics, models, partition
from equifed.errors import ConfigError, DataError, EquifedError, EquifedWarning, RunError
from equifed.federation import Federation
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
    "methods",
    "metrics",
    "models",
    "partition",
    "simulate",
    "sweep",
]
