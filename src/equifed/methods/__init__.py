"""All methods. The registry is the dict below: name on the command line -> class."""

from __future__ import annotations

from typing import Any

from equifed.errors import ConfigError, unknown_name
from equifed.methods.centralized_kernel import CentralizedKernel
from equifed.methods.citations import Citation, citation
from equifed.methods.e2fl import E2FL
from equifed.methods.fair_fate import FairFate
from equifed.methods.fairfed import FairFed
from equifed.methods.fedavg import FedAvg
from equifed.methods.feddemon import FedDemon
from equifed.methods.fedminmax import FedMinMax
from equifed.methods.fedmom import FedMom
from equifed.methods.fedprox import FedProx
from equifed.methods.fedval import FedVal
from equifed.methods.frl import FRL
from equifed.methods.hyper import check, check_value, documentation
from equifed.methods.ifca import IFCA
from equifed.methods.kffl import KFFL
from equifed.methods.kffl_td import KFFLTD
from equifed.methods.local import LocalTraining
from equifed.methods.local_kernel import LocalKernel
from equifed.methods.qffl import QFFL
from equifed.methods.reweighing import FedAvgGR, FedAvgLR
from equifed.protocol import Method

__all__ = [
    "E2FL",
    "FRL",
    "IFCA",
    "KFFL",
    "KFFLTD",
    "QFFL",
    "REGISTRY",
    "CentralizedKernel",
    "Citation",
    "FairFate",
    "FairFed",
    "FedAvg",
    "FedAvgGR",
    "FedAvgLR",
    "FedDemon",
    "FedMinMax",
    "FedMom",
    "FedProx",
    "FedVal",
    "LocalKernel",
    "LocalTraining",
    "Method",
    "check",
    "check_value",
    "citation",
    "documentation",
    "make",
]

REGISTRY: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "local": LocalTraining,
    "fedmom": FedMom,
    "feddemon": FedDemon,
    "fedavg-lr": FedAvgLR,
    "fedavg-gr": FedAvgGR,
    "fedval": FedVal,
    "fair-fate": FairFate,
    "fairfed": FairFed,
    "kffl": KFFL,
    "kffl-td": KFFLTD,
    "local-kernel": LocalKernel,
    "centralized-kernel": CentralizedKernel,
    "fedminmax": FedMinMax,
    "frl": FRL,
    "e2fl": E2FL,
    "ifca": IFCA,
    "q-ffl": QFFL,
}


def make(name: str, **hyper_parameters: Any) -> Method:
    """The method with this registry name; hyper-parameters may be written with dashes or underscores."""
    if name not in REGISTRY:
        raise ConfigError(unknown_name("method", name, REGISTRY))
    kind = REGISTRY[name]
    values = {
        key.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for key, value in hyper_parameters.items()
    }
    for key, value in values.items():
        check_value(kind, key, value)
    return kind(**values)
