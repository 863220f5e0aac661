"""Compare a silo's clock with the server's.

A node signs each request with its time, and Flower refuses signatures dated ahead of the server's clock or long before
it. A node that is refused for this ends without reporting the reason.
"""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from equifed.errors import ConfigError, RunError

PATIENCE = 10.0
"""Seconds to wait for the server's answer."""
LOOKS = 4
"""Number of answers to compare, within a second."""
NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: a clock that is years off would find the server's certificate invalid."""


def seconds_ahead(address: str, port: int, authority: Path) -> float:
    """Return how far this clock is ahead of the server's, to about a second, by the dates in its answers over TLS."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise ConfigError(f"The certificate {authority} cannot be read: {error.strerror}.") from error
    context.verify_flags |= NO_CHECK_TIME
    connection = http.client.HTTPSConnection(address, port, timeout=PATIENCE, context=context)
    found = []
    try:
        for _ in range(LOOKS):
            connection.connect()
            sent = time.time()
            connection.request("GET", "/v1/fleet/")  # a path that proxies pass on; any answer has a date
            date = connection.getresponse().getheader("Date")
            if date is None:
                raise ValueError("its answer has no date")
            found.append((sent + time.time()) / 2 - parsedate_to_datetime(date).timestamp())
            connection.close()
            time.sleep(1 / LOOKS)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"This clock could not be compared with that of {address}:{port}: {why}.") from error
    finally:
        connection.close()
    return min(found) - 0.5  # a date has no fraction of a second, and some servers reuse it for another second


def describe_offset(ahead: float) -> str:
    """Return the problem with a clock that is `ahead` seconds ahead of the server's; empty if there is none."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    early, late = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    if -late < ahead < early:
        return ""
    how, allowed = ("ahead of", early) if ahead > 0 else ("behind", late)
    return (
        f"This clock is {abs(ahead):.0f} s {how} the server's: Flower allows {allowed}. Until the clock is set right, "
        "for example by `timedatectl set-ntp true`, the server refuses this silo's node."
    )
