"""Keep freed memory for reuse.

glibc returns large blocks to the system as soon as they are freed, and a round frees many: the tensors of every step.
The system then zeroes fresh pages for the next step, with a fault for every 4 KiB, which can take longer than the
arithmetic.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 2**30
"""Largest size of a block that is kept, and of free memory kept at the end of the heap, in bytes."""
LARGEST_OF_OLD = 2**25
"""Largest threshold for blocks that glibc accepted before 2.35."""
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


@cache
def keep_freed() -> bool:
    """Make glibc keep freed memory for the rest of the process; return True on success. Do nothing if the user has set
    this by the environment, or if another library allocates."""
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
