"""Sums that nobody sees singly: each silo masks its integers so that only the sum over many silos can be read.

`rules.py` is what the simulator shares and needs no cryptography; `silo.py` is a silo's side, `server.py` the server's,
`exchange.py` what they send each other, `keys.py` who vouches for keys. All of cryptography but Shamir's sharing
(`shamir.py`) comes from the package of that name, by `primitives.py`. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equifed.errors import ConfigError

if TYPE_CHECKING:
    from equifed.secure.exchange import Exchange, Masked, NotSummed, Refused, Told, Total
    from equifed.secure.keys import Roster, sign, verify
    from equifed.secure.primitives import usable
    from equifed.secure.rules import FEWEST, masked_bytes, threshold, unmask_bytes, unsummed
    from equifed.secure.server import total
    from equifed.secure.silo import Silo

_HOMES = {
    **dict.fromkeys(("FEWEST", "masked_bytes", "threshold", "unmask_bytes", "unsummed"), "rules"),
    **dict.fromkeys(("Exchange", "Masked", "NotSummed", "Refused", "Told", "Total"), "exchange"),
    **dict.fromkeys(("Roster", "sign", "verify"), "keys"),
    "Silo": "silo",
    "usable": "primitives",
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
