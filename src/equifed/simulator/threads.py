"""Threads for work that releases Python's lock: compiled loops, and torch's operations on large tensors."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache


def count_usable_cores() -> int:
    """Return OMP_NUM_THREADS, as torch and NumPy do; by default the number of cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_out(work: Callable[[int], object], pieces: int, threads: int) -> None:
    """Call work(0), ..., work(pieces - 1), each on the next free thread, including the caller's. So a thread that the
    machine delays holds up a single piece, not a fixed share of all."""
    todo = itertools.count()
    failed: list[BaseException] = []
    lock = threading.Lock()

    def take() -> None:
        while not failed:
            with lock:
                piece = next(todo)
            if piece >= pieces:
                return
            try:
                work(piece)
            except BaseException as error:  # raised in the caller's thread below
                failed.append(error)

    others = min(threads, pieces) - 1
    started = [_pool(threads).submit(take) for _ in range(others)]
    take()
    wait(started)
    if failed:
        raise failed[0]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="equifed")
