"""A silo's side of a federation: its node's answers to the server. The silo's rows and state stay at the silo.

    app.py      the answer to each message: the first file to read
    checks.py   the requests that the silo refuses, before any work is done
    rows.py     the silo's rows, and the reference engine's work on them
    plain.py    answers that the server reads
    masked.py   answers of which the server learns only a sum over the silos

Node config: `client-id`; `data`, its file; `state`, a folder for its state; `min-count`, to withhold counts below a
higher number than the federation's; `key`, its node's private key, and `roster`, the other nodes' public keys, for
secure sums; `secure=true`, to take part only in secure sums, as implied by `key` and `roster`; `app`, the digest of
the only configuration that it takes part in.
"""

from equifed.flower.silo.app import SiloApp, load_app

__all__ = ["SiloApp", "load_app"]
