from __future__ import annotations

from pathlib import Path

import pytest

from flower.inprocess import write_files


@pytest.fixture(scope="session")
def silos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six silos' files, a schema, and the server's validation file."""
    folder = tmp_path_factory.mktemp("silos")
    write_files(folder)
    return folder
