"""All methods, and the registry of their names on the command line and in configurations."""

from __future__ import annotations

import re
from typing import Any

from equifed.errors import ConfigError, unknown_name
from equifed.methods._wrapper import Wrapper
from equifed.methods.afl import AFL as AFL
from equifed.methods.agnostic_fair import AgnosticFair as AgnosticFair
from equifed.methods.apfl import APFL as APFL
from equifed.methods.centralized_kernel import CentralizedKernel as CentralizedKernel
from equifed.methods.citations import Citation as Citation
from equifed.methods.citations import citation as citation
from equifed.methods.citations import citations as citations
from equifed.methods.cvar import CVaR as CVaR
from equifed.methods.ditto import Ditto as Ditto
from equifed.methods.e2fl import E2FL as E2FL
from equifed.methods.fair_fate import FairFate as FairFate
from equifed.methods.fairfed import FairFed as FairFed
from equifed.methods.fcfl import FCFL as FCFL
from equifed.methods.fed_fairgrad import FedFairGrad as FedFairGrad
from equifed.methods.fedavg import FedAvg as FedAvg
from equifed.methods.feddemon import FedDemon as FedDemon
from equifed.methods.feddyn import FedDyn as FedDyn
from equifed.methods.fedem import FedEM as FedEM
from equifed.methods.fedfact import FedFACT as FedFACT
from equifed.methods.fedfair import FedFair as FedFair
from equifed.methods.fedfb import FedFB as FedFB
from equifed.methods.fedgft import FedGFT as FedGFT
from equifed.methods.fedmgda import FedMGDA as FedMGDA
from equifed.methods.fedminmax import FedMinMax as FedMinMax
from equifed.methods.fedmom import FedMom as FedMom
from equifed.methods.fednova import FedNova as FedNova
from equifed.methods.fedper import FedPer as FedPer
from equifed.methods.fedprox import FedProx as FedProx
from equifed.methods.fedrep import FedRep as FedRep
from equifed.methods.fedval import FedVal as FedVal
from equifed.methods.frl import FRL as FRL
from equifed.methods.gifair import GIFAIR as GIFAIR
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
from equifed.methods.postprocess import CalibratedEqualizedOdds, EqualizedOdds, Fair
from equifed.methods.propfair import PropFair as PropFair
from equifed.methods.qffl import QFFL as QFFL
from equifed.methods.reweighing import FedAvgGR as FedAvgGR
from equifed.methods.reweighing import FedAvgLR as FedAvgLR
from equifed.methods.scaffold import Scaffold as Scaffold
from equifed.methods.separate_training import SeparateTraining as SeparateTraining
from equifed.methods.server_optimizers import Adagrad as Adagrad
from equifed.methods.server_optimizers import Adam as Adam
from equifed.methods.server_optimizers import Momentum as Momentum
from equifed.methods.server_optimizers import Yogi as Yogi
from equifed.methods.sffl import SFFL as SFFL
from equifed.methods.term import TERM as TERM
from equifed.protocol import Method as Method
from equifed.registry import Registry, allow

_BUILT_IN: tuple[type[Method], ...] = (
    FedAvg, FedProx, LocalOnly, FedMom, FedDemon, FedAvgLR, FedAvgGR, FedVal, FairFate, FedFair, LCO,
    SeparateTraining, AgnosticFair, FairFed, KFFL, KFFLTD, LocalKernel, CentralizedKernel, FedMinMax, SFFL, FedEM,
    FCFL, FRL, E2FL, IFCA, QFFL, FedFB, FedFairGrad, FedGFT, AFL, TERM, GIFAIR, PropFair, FedMGDA, CVaR,
    Scaffold, FedNova, FedDyn, FedFACT, Ditto, FedPer, FedRep, APFL,
)  # fmt: skip

REGISTRY: Registry[type[Method]] = Registry(
    "method",
    "equifed.methods",
    {kind.name: kind for kind in _BUILT_IN},
    fits=lambda thing: isinstance(thing, type) and issubclass(thing, Method),
    must_be="a subclass of equifed.methods.Method",
)


WRAPPERS: dict[str, type[Wrapper]] = {
    kind.suffix: kind for kind in (EqualizedOdds, CalibratedEqualizedOdds, Fair, Ditto, Momentum, Adagrad, Adam, Yogi)
}
"""Wrappers by the suffix of a method's name: post-processing, personal models, server optimisers."""


def unwrap(name: str) -> tuple[str, list[type[Wrapper]]]:
    """Split a name such as "fedavg@adam+fair" into the registry name and its wrappers, the outermost last."""
    wrappers: list[type[Wrapper]] = []
    known = set(REGISTRY)
    while name not in known:  # a registered name may end in a plus
        suffix = next((suffix for suffix in WRAPPERS if name.endswith(suffix)), None)
        if suffix is None:
            last = re.search(r"[+@][^+@]*$", name)
            if last and name[: last.start()]:
                raise unknown_name("wrapper", last[0], WRAPPERS)
            break
        wrappers.insert(0, WRAPPERS[suffix])
        name = name.removesuffix(suffix)
    return name, wrappers


def make(name: str, **hyper_parameters: Any) -> Method:
    """Return the method with this registry name. NAME+eo, NAME+ceo and NAME+fair add post-processing to NAME,
    NAME+ditto a personal model for each client, NAME@adam and similar a server optimiser. Suffixes can be combined.

    Hyperparameters may be written with dashes or underscores. The user must have typed the name; otherwise use
    `make_recorded`.
    """
    allow(unwrap(name)[0])
    return make_recorded(name, **hyper_parameters)


def make_recorded(name: str, **hyper_parameters: Any) -> Method:
    """Return the method with a name that was read from a file: see `equifed.registry`."""
    base, wrappers = unwrap(name)
    kind = REGISTRY[base]
    if not issubclass(kind, Wrapper):
        kind.name = REGISTRY.name_of(kind)  # a method of another package may have no name, or a wrong one
    without = [option.name for option in options(kind).values() if option.required]
    if without:
        raise ConfigError(f"{name}: every hyperparameter needs a default, which {', '.join(without)} lacks.")
    method = kind()
    for wrapper in wrappers:
        method = wrapper(method)
    values = {
        key.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for key, value in hyper_parameters.items()
    }
    for key, value in values.items():
        check_value(method, key, value)
        if type(value) is int and options(method)[key].number is float:
            values[key] = float(value)  # torch accepts large numbers only as floats
    return method.with_hyper(**values)


def summable_names() -> list[str]:
    """Return the names of methods that need only sums of replies, and so work with `secure`."""
    made = ((name, make(name)) for name in REGISTRY.usable())
    return [name for name, method in made if not method.pooled and method.summed is not None]
