"""What a secure sum costs beyond a plain one: computing, in seconds of one processor, and bytes.

    python benchmarks/secure.py [--all]

Prints the table of docs/privacy.md. All silos and the server are in one process, without training and without network;
every sum is compared with the plain one. Without --all, only what has a limit, beyond which it ends with an error: 5
silos x 10,000 values in at most 0.1 s for a whole exchange, 50 silos x 1.6 million values in at most 2 s for each silo.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from equifed.secure import Exchange, Silo, masked_bytes, total, unmask_bytes

LAYOUT, SENT = b"a list of numbers", bytes(32)


class Cost(NamedTuple):
    """Seconds of one processor, and bytes."""

    keys: float
    """Of one silo, once a run: its key, and what it agrees on with each other silo."""
    mask: float
    """Of one silo."""
    tell: float
    """Of one silo."""
    total: float
    """Of the server."""
    up: int
    unmask: int
    """Question and answer of one silo."""

    def exchange(self, silos: int) -> float:
        """All that is computed for one sum, by everybody."""
        return (self.mask + self.tell) * silos + self.total


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def numbers(silo: int, values: int) -> np.ndarray:
    return np.random.default_rng(silo).integers(-(2**40), 2**40, values)


def measure(silos: int, values: int, gone: int, folder: Path) -> Cost:
    names = tuple(f"silo-{index:03}" for index in range(silos))
    made, nodes = cpu(lambda: {name: Silo(name, "run", folder / name) for name in names})
    exchange = Exchange("run", 1, 1, names, tuple(node.public for node in nodes.values()), silos)
    agreed, _ = cpu(lambda: [node.check(exchange) for node in nodes.values()])

    mask, masked = 0.0, {}
    for place, name in enumerate(names[gone:], start=gone):
        own = numbers(place, values)
        seconds, masked[name] = cpu(lambda name=name, own=own: nodes[name].mask(exchange, LAYOUT, SENT, own))
        mask += seconds / (silos - gone)
    transcript = exchange.transcript(LAYOUT, SENT)
    sealed = {name: {other: masked[other].shares[name] for other in masked if other != name} for name in masked}
    tell, told = cpu(lambda: {name: nodes[name].unmask(transcript, tuple(masked), sealed[name]) for name in masked})
    server, result = cpu(lambda: total(exchange, transcript, masked, told))

    plain = np.zeros(values, np.int64)
    for place in range(gone, silos):
        plain += numbers(place, values)
    assert (result.numbers.view(np.int64) == plain).all()
    unmask = sum(unmask_bytes(silos, gone))
    return Cost((made + agreed) / silos, mask, tell / len(told), server, masked_bytes(values, silos), unmask)


def best(silos: int, values: int, gone: int, times: int) -> Cost:
    """The least of several, figure by figure: what else runs on the machine can only add."""
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(silos, values, gone, Path(folder)))
    return Cost(*(min(column) for column in zip(*found, strict=True)))


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the other sizes too")
    every = parser.parse_args().all
    cases = [(5, 10_000, 1, 5), (50, 1_600_000, 2, 1)]
    if every:
        cases = [(5, 10_000, 0, 5), cases[0], (50, 10_000, 5, 3), (500, 10_000, 25, 1), (5, 1_600_000, 1, 3), cases[1]]
    print("| silos x values | gone | keys, once | mask | unmask | server | up (float32) | unmask |")
    print("|---|---|---|---|---|---|---|---|")
    slow = []
    for silos, values, gone, times in cases:
        cost = best(silos, values, gone, times)
        figures = [*map(milliseconds, cost[:4]), f"{size(cost.up)} ({size(4 * values)})", size(cost.unmask)]
        print(f"| {silos} x {values:,} | {gone} | {' | '.join(figures)} |", flush=True)
        if (silos, values) == (5, 10_000) and cost.exchange(silos) > 0.1:
            slow.append(f"an exchange of {silos} silos x {values:,} took {cost.exchange(silos):.2f} s, not 0.1")
        if (silos, values) == (50, 1_600_000) and cost.mask + cost.tell > 2:
            slow.append(f"a silo of {silos} took {cost.mask + cost.tell:.2f} s for {values:,} values, not 2")
    if slow:
        raise SystemExit("; ".join(slow))


if __name__ == "__main__":
    main()
