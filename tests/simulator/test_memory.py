"""Memory that is freed in a round is there for the next: counted in page faults of a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

TENSORS, MEGABYTES = 8, 64
WORK = f"""
import resource, torch
from equifed.simulator.memory import keep_freed

def faults(tensors):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(tensors):
        torch.ones({MEGABYTES} * 2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults({TENSORS})
kept = keep_freed()
faults(1)
print(first, kept, faults({TENSORS}))
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")


def faults(**environment: str) -> tuple[int, bool, int]:
    """Page faults of all tensors before, whether memory is kept, and those after."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", WORK], env=plain | environment, capture_output=True, text=True, check=True
    )
    before, kept, after = done.stdout.split()
    return int(before), kept == "True", int(after)


@pytest.mark.full
def test_freed_memory_is_kept() -> None:
    before, kept, after = faults()
    assert kept
    assert after < before / 4  # one tensor may find its place taken


@pytest.mark.parametrize(
    "own", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
@pytest.mark.full
def test_the_user_s_own_settings_stand(own: dict[str, str]) -> None:
    assert faults(**own)[1] is False
