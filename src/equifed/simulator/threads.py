"""Threads for work that lets go of Python's lock: compiled loops, and torch's operations on large tensors."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache


def usable_cores() -> int:
    """What OMP_NUM_THREADS says, as for torch and NumPy; else all cores that this process may use."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if said.isdigit() and int(said):
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_out(work: Callable[[int], object], pieces: int, threads: int) -> None:
    """work(0), ..., work(pieces - 1), each on the thread that is free next; the caller's own is one of them. A thread
    that the machine holds up so keeps one piece waiting, not its share of all."""
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
            except BaseException as error:  # told to the caller
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
