from __future__ import annotations

from pathlib import Path

import pytest

from equifed.flower import link
from flower.inprocess import write_files


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process a reply is there at once or never: nobody need wait long before looking again."""
    monkeypatch.setattr(link, "POLL", 0.01)


@pytest.fixture(scope="session")
def silos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six silos' files, a schema, and the server's validation file."""
    folder = tmp_path_factory.mktemp("silos")
    write_files(folder)
    return folder
