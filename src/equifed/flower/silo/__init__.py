"""A silo's side of a federation: what its node does when the server asks. The silo's rows and memory stay where they
are.

    app.py      which message gets which answer: the first file to read
    checks.py   what the silo refuses to answer, before any work is done
    rows.py     its rows, and the reference engine's work on them
    plain.py    answers that the server reads
    masked.py   answers of which the server learns a sum over the silos only

Node config: `client-id`; `data`, its file; `state`, a folder for what it remembers; `min-count`, if its own is to be
higher than the federation's; `key`, its node's private key, and `roster`, the other nodes' public ones, for secure
sums; `secure=true`, if it takes part in no others, which `key` and `roster` say too; `app`, the digest of the only
configuration that it takes part in.
"""

from equifed.flower.silo.app import SiloApp, load_app

__all__ = ["SiloApp", "load_app"]
