"""All methods, and the registry of their names on the command line and in configurations."""

from __future__ import annotations

from typing import Any

from equifed.errors import ConfigError, unknown_name
from equifed.methods.agnostic_fair import AgnosticFair as AgnosticFair
from equifed.methods.centralized_kernel import CentralizedKernel as CentralizedKernel
from equifed.methods.citations import Citation as Citation
from equifed.methods.citations import citation as citation
from equifed.methods.citations import citations as citations
from equifed.methods.e2fl import E2FL as E2FL
from equifed.methods.fair_fate import FairFate as FairFate
from equifed.methods.fairfed import FairFed as FairFed
from equifed.methods.fcfl import FCFL as FCFL
from equifed.methods.fedavg import FedAvg as FedAvg
from equifed.methods.feddemon import FedDemon as FedDemon
from equifed.methods.feddyn import FedDyn as FedDyn
from equifed.methods.fedem import FedEM as FedEM
from equifed.methods.fedfair import FedFair as FedFair
from equifed.methods.fedminmax import FedMinMax as FedMinMax
from equifed.methods.fedmom import FedMom as FedMom
from equifed.methods.fednova import FedNova as FedNova
from equifed.methods.fedprox import FedProx as FedProx
from equifed.methods.fedval import FedVal as FedVal
from equifed.methods.frl import FRL as FRL
from equifed.methods.hyper import Option as Option
from equifed.methods.hyper import check as check
from equifed.methods.hyper import check_value as check_value
from equifed.methods.hyper import options as options
from equifed.methods.ifca import IFCA as IFCA
from equifed.methods.kffl import KFFL as KFFL
from equifed.methods.kffl_td import KFFLTD as KFFLTD
from equifed.methods.lco import LCO as LCO
from equifed.methods.local import LocalOnly as LocalOnly
from equifed.methods.local_kernel import LocalKernel as LocalKernel
from equifed.methods.postprocess import POST_PROCESSING
from equifed.methods.qffl import QFFL as QFFL
from equifed.methods.reweighing import FedAvgGR as FedAvgGR
from equifed.methods.reweighing import FedAvgLR as FedAvgLR
from equifed.methods.scaffold import Scaffold as Scaffold
from equifed.methods.separate_training import SeparateTraining as SeparateTraining
from equifed.methods.sffl import SFFL as SFFL
from equifed.protocol import Method as Method
from equifed.registry import Registry

_BUILT_IN: tuple[type[Method], ...] = (
    FedAvg, FedProx, LocalOnly, FedMom, FedDemon, FedAvgLR, FedAvgGR, FedVal, FairFate, FedFair, LCO,
    SeparateTraining, AgnosticFair, FairFed, KFFL, KFFLTD, LocalKernel, CentralizedKernel, FedMinMax, SFFL, FedEM,
    FCFL, FRL, E2FL, IFCA, QFFL, Scaffold, FedNova, FedDyn,
)  # fmt: skip

REGISTRY: Registry[type[Method]] = Registry(
    "method",
    "equifed.methods",
    {kind.name: kind for kind in _BUILT_IN},
    fits=lambda thing: isinstance(thing, type) and issubclass(thing, Method),
    must_be="a subclass of equifed.methods.Method",
)


def make(name: str, **hyper_parameters: Any) -> Method:
    """The method with this registry name; NAME+eo, NAME+ceo and NAME+fair are NAME post-processed.

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


def summing() -> list[str]:
    """The methods that need no more than sums of replies, and so work with `secure`."""
    return [name for name, kind in REGISTRY.usable().items() if not kind.pooled and make(name).summed is not None]
