"""A federation as one place in it sees it: every silo by name, but only the rows of that place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equifed.data import Schema
from equifed.federation import tables
from equifed.federation.federation import Federation
from equifed.federation.split import split_silos


def from_one_place(
    silos: Sequence[str],
    schema: Schema,
    *,
    silo: str | None = None,
    file: str | Path | None = None,
    validation_file: str | Path | None = None,
    client_groups: Mapping[str, str] | None = None,
    test: float,
    seed: int = 0,
    name: str = "",
) -> Federation:
    """All silos by name, with rows in one place: those in `file` of the silo `silo`, or the server's validation rows.

    The rows and their split are those that `Federation.from_tables` gives this silo. Inputs are standardised later,
    when the means over all silos are known.
    """
    local, nothing = tables.encode_file(schema, file), tables.no_rows(schema)
    held = {member: local if member == silo else nothing for member in silos}
    server = tables.encode_file(schema, validation_file, named="validation_file")
    groups = tables.known_groups(client_groups, silos)
    whole, holdings = split_silos(held, server, groups, seed=seed, split=(1 - test, 0.0, test))
    return Federation.of(whole, holdings, standardise=False, seed=seed, name=name)
