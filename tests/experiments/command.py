"""`equifed reproduce` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160"}
    command = [sys.executable, "-m", "equifed", "reproduce", *arguments, "--runs", str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
