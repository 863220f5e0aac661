"""Secure aggregation: each silo masks its integers so that only the sum over many silos can be read.

`rules.py` is shared with the simulator and does not need cryptography; `silo.py` is a silo's side, `server.py` the
server's, `exchange.py` has their messages, `keys.py` the verification of keys. All cryptography but Shamir's sharing
(`shamir.py`) comes from the package `cryptography`, by `primitives.py`. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equifed.errors import ConfigError

if TYPE_CHECKING:
    from equifed.secure.exchange import Exchange, Masked, NotSummed, Refused, Total, UnmaskReply
    from equifed.secure.keys import Roster, sign, verify
    from equifed.secure.primitives import is_usable_key
    from equifed.secure.rules import FEWEST, find_obstacle, masked_bytes, threshold, unmask_bytes
    from equifed.secure.server import total
    from equifed.secure.silo import Silo

_HOMES = {
    **dict.fromkeys(("FEWEST", "masked_bytes", "threshold", "unmask_bytes", "find_obstacle"), "rules"),
    **dict.fromkeys(("Exchange", "Masked", "NotSummed", "Refused", "UnmaskReply", "Total"), "exchange"),
    **dict.fromkeys(("Roster", "sign", "verify"), "keys"),
    "Silo": "silo",
    "is_usable_key": "primitives",
    "total": "server",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'equifed.secure' has no attribute {name!r}")
    try:
        return getattr(import_module(f"equifed.secure.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        text = f"Secure sums need the package {missing}, which is not installed: pip install 'equifed[flower]'."
        raise ConfigError(text) from error


def __dir__() -> list[str]:
    return __all__
