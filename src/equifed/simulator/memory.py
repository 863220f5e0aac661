"""Memory that a step has freed, kept for the next one.

glibc gives large blocks back to the system as soon as they are freed, and a round frees many: the tensors of every
step. The system then fills fresh pages with zeros for the next step's, one fault for every 4 KiB, which can take more
time than the arithmetic.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 2**30
"""Bytes: blocks up to this size are kept, and so much of free memory at the end of the heap."""
LARGEST_OF_OLD = 2**25
"""The largest threshold for blocks that glibc took before 2.35."""
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


@cache
def keep_freed() -> bool:
    """Tells glibc, for the rest of the process, to keep what is freed; says whether it does. Where the user has chosen
    such settings by the environment, or another library allocates, nothing is changed."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl
        return False
    blocks = mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, LARGEST_OF_OLD)
    return bool(blocks and mallopt(M_TRIM_THRESHOLD, KEPT))
