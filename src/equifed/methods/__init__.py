"""All methods, and the registry of their names on the command line and in configurations."""

from __future__ import annotations

from typing import Any

from equifed.errors import ConfigError, unknown_name
from equifed.methods.agnostic_fair import AgnosticFair
from equifed.methods.centralized_kernel import CentralizedKernel
from equifed.methods.citations import Citation, citation, citations
from equifed.methods.e2fl import E2FL
from equifed.methods.fair_fate import FairFate
from equifed.methods.fairfed import FairFed
from equifed.methods.fcfl import FCFL
from equifed.methods.fedavg import FedAvg
from equifed.methods.feddemon import FedDemon
from equifed.methods.fedem import FedEM
from equifed.methods.fedfair import FedFair
from equifed.methods.fedminmax import FedMinMax
from equifed.methods.fedmom import FedMom
from equifed.methods.fedprox import FedProx
from equifed.methods.fedval import FedVal
from equifed.methods.frl import FRL
from equifed.methods.hyper import Option, check, check_value, hyper, options
from equifed.methods.ifca import IFCA
from equifed.methods.kffl import KFFL
from equifed.methods.kffl_td import KFFLTD
from equifed.methods.lco import LCO
from equifed.methods.local import LocalOnly
from equifed.methods.local_kernel import LocalKernel
from equifed.methods.postprocess import POST_PROCESSING
from equifed.methods.qffl import QFFL
from equifed.methods.reweighing import FedAvgGR, FedAvgLR
from equifed.methods.separate_training import SeparateTraining
from equifed.methods.sffl import SFFL
from equifed.protocol import Method
from equifed.registry import Registry

__all__ = [
    "E2FL",
    "FCFL",
    "FRL",
    "IFCA",
    "KFFL",
    "KFFLTD",
    "LCO",
    "QFFL",
    "REGISTRY",
    "SFFL",
    "AgnosticFair",
    "CentralizedKernel",
    "Citation",
    "FairFate",
    "FairFed",
    "FedAvg",
    "FedAvgGR",
    "FedAvgLR",
    "FedDemon",
    "FedEM",
    "FedFair",
    "FedMinMax",
    "FedMom",
    "FedProx",
    "FedVal",
    "LocalKernel",
    "LocalOnly",
    "Method",
    "Option",
    "SeparateTraining",
    "check",
    "check_value",
    "citation",
    "citations",
    "hyper",
    "make",
    "options",
]

_BUILT_IN: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "local": LocalOnly,
    "fedmom": FedMom,
    "feddemon": FedDemon,
    "fedavg-lr": FedAvgLR,
    "fedavg-gr": FedAvgGR,
    "fedval": FedVal,
    "fair-fate": FairFate,
    "fedfair": FedFair,
    "lco": LCO,
    "separate-training": SeparateTraining,
    "agnostic-fair": AgnosticFair,
    "fairfed": FairFed,
    "kffl": KFFL,
    "kffl-td": KFFLTD,
    "local-kernel": LocalKernel,
    "centralized-kernel": CentralizedKernel,
    "fedminmax": FedMinMax,
    "sffl": SFFL,
    "fedem": FedEM,
    "fcfl": FCFL,
    "frl": FRL,
    "e2fl": E2FL,
    "ifca": IFCA,
    "q-ffl": QFFL,
}

REGISTRY: Registry[type[Method]] = Registry(
    "method",
    "equifed.methods",
    _BUILT_IN,
    fits=lambda thing: isinstance(thing, type) and issubclass(thing, Method),
    must_be="a subclass of equifed.methods.Method",
)


def make(name: str, **hyper_parameters: Any) -> Method:
    """The method with this registry name; NAME+eo and NAME+ceo are NAME post-processed.

    Hyper-parameters may be written with dashes or underscores.
    """
    base, plus, rule = name.partition("+")
    kind = REGISTRY[base]
    kind.name = REGISTRY.name_of(kind)  # one from outside may have none, or one that does not lead to it
    without = [option.name for option in options(kind).values() if option.required]
    if without:
        raise ConfigError(f"{name}: every hyper-parameter needs a default, which {', '.join(without)} lacks.")
    method = kind()
    if plus:
        if rule not in POST_PROCESSING:
            raise unknown_name("post-processing", rule, POST_PROCESSING)
        method = POST_PROCESSING[rule](method)
    values = {
        key.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for key, value in hyper_parameters.items()
    }
    for key, value in values.items():
        check_value(method, key, value)
    return method.with_hyper(**values)
