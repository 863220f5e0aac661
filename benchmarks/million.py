"""A million clients: memory and time per round of a federation whose rows stay in a file, against one of 10,000.

    python benchmarks/million.py                       # 10,000 and 1,000,000 clients of 20 rows of 50 numbers
    python benchmarks/million.py --clients 1000 20000  # smaller

Every step is a process of its own: writing the rows as Parquet, preparing them (once), and training 100 clients a round
by FedAvg, from a file that the system has in its page cache and from one that it has not. Peak memory is the process's
`VmHWM`: everything that was ever resident at once, also pages of the mapped file and of libraries. Of it, `alloc.` is
what the process allocated itself (`RssAnon`, the most that was seen after a round). The page cache belongs to the
system, which gives it up when memory is needed, and counts for nobody. `base` is what Python, torch and equifed take
before a row is looked at. `ms/round` is the median over rounds by the clock, `CPU ms` that of the processor's time,
which other programs disturb less. It ends with an error if the peak is not below a quarter of the data, where these
have at least 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from equifed import Columns, Holdout, Mapped

ROWS, FEATURES, TEST_ROWS = 20, 50, 5000
PIECE = 20_000
"""Clients that are made at once."""


def memory() -> dict[str, float]:
    """Memory of this process in MB: resident now, at its peak, and of that now what it allocated itself."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {words[0].rstrip(":"): float(words[1]) * 1024 / 1e6 for words in lines if words and words[-1] == "kB"}
    return {name: found[name] for name in ("VmRSS", "VmHWM", "RssAnon", "RssFile")}


# -- the steps, each in a process of its own ---------------------------------------------------------------------------


def write(folder: Path, clients: int) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    truth = rng.normal(size=FEATURES).astype(np.float32)

    def table(owner: np.ndarray) -> pa.Table:
        x = rng.standard_normal((len(owner), FEATURES), dtype=np.float32)
        s = rng.random(len(owner)) < 0.4
        y = x @ truth + 2 * s + 3 * rng.normal(size=len(owner)) > 0
        columns = {f"f{i}": x[:, i] for i in range(FEATURES)}
        return pa.table({"client": owner, "group": np.where(s, "a", "b"), "label": y.astype(np.int8), **columns})

    parquet.write_table(table(np.zeros(TEST_ROWS, np.int64)).drop_columns("client"), folder / "test.parquet")
    writer = None
    for begin in range(0, clients, PIECE):
        piece = table(np.repeat(np.arange(begin, min(begin + PIECE, clients)), ROWS))
        writer = writer or parquet.ParquetWriter(folder / "rows.parquet", piece.schema, use_dictionary=["group"])
        writer.write_table(piece)
    assert writer is not None
    writer.close()
    return {"size": (folder / "rows.parquet").stat().st_size / 1e6}


def federation(folder: Path) -> Any:
    from equifed import Federation

    return Federation.from_tables(
        Mapped(folder / "rows.parquet", client="client", cache=folder / "cache"),
        Columns(label="label", sensitive="group"),
        holdout=Holdout(test_file=folder / "test.parquet"),
    )


def prepare(folder: Path) -> dict[str, Any]:
    import equifed.federation.prepare  # noqa: F401 - what it takes to import is not counted

    begin = time.perf_counter()
    federation(folder)
    return {"seconds": time.perf_counter() - begin, "size": (folder / "cache" / "rows.bin").stat().st_size / 1e6}


def train(folder: Path, rounds: int, per_round: int, method: str, warm: bool) -> dict[str, Any]:
    import equifed.federation.prepare  # noqa: F401 - part of the base, since everything is imported sooner or later
    from equifed import methods, models
    from equifed.settings import RunSettings
    from equifed.simulation import Simulation
    from equifed.simulator import make_job

    rows = folder / "cache" / "rows.bin"
    with open(rows, "rb") as file:  # into the page cache, or out of it
        while warm and file.read(2**20):
            pass
        if not warm:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    base, begin = memory()["VmRSS"], time.perf_counter()
    fed = federation(folder)
    opened = time.perf_counter() - begin
    settings = RunSettings(rounds=rounds, clients_per_round=per_round, seeds=1, eval_every=rounds)
    simulation = Simulation(make_job(methods.make(method), fed, models.Logistic(), settings))
    wall, processor, anonymous = [], [], 0.0
    clock = time.process_time()
    for step in simulation.rounds():
        processor.append(time.process_time() - clock)
        if not wall:
            first = time.perf_counter() - begin
        wall.append(step.seconds)
        anonymous = max(anonymous, memory()["RssAnon"])
        clock = time.process_time()
    simulation.result()
    steady = slice(5, -1)  # for the first all is prepared, after the last all is measured
    return {
        "base": base,
        "anonymous": max(anonymous, memory()["RssAnon"]),
        "opened": opened,
        "first": first,
        "round": statistics.median(wall[steady]) * 1e3,
        "processor": statistics.median(processor[steady]) * 1e3,
    }


# -- the whole ---------------------------------------------------------------------------------------------------------


def in_process(step: str, folder: Path, **options: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder), "--options", json.dumps(options)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--folder", type=Path, help="where the files are made, some 9 GB for a million clients")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        found = globals()[given.step](given.folder, **given.options)
        print(json.dumps({**found, "peak": memory()["VmHWM"]}))
        return
    print(f"{given.method}, {given.per_round} clients of {ROWS} rows of {FEATURES} numbers a round; memory in MB")
    heads = ("clients", "file", "data", "base", "peak", "alloc.", "of data", "open s", "1st s", "ms/round", "CPU ms")
    print(" ".join(f"{head:>9}" for head in heads))
    for clients in given.clients:
        folder = Path(tempfile.mkdtemp(prefix="million-", dir=given.folder))
        try:
            written = in_process("write", folder, clients=clients)
            made = in_process("prepare", folder)
            print(
                f"{clients:9,} prepared in {made['seconds']:.0f} s from {written['size']:,.0f} MB of Parquet, "
                f"with a peak of {made['peak']:,.0f} MB"
            )
            for warm in (True, False):
                options = {"rounds": given.rounds, "per_round": given.per_round, "method": given.method, "warm": warm}
                run = in_process("train", folder, **options)
                share = run["peak"] / made["size"]
                cells = (
                    *(f"{clients:,}", "cached" if warm else "cold", f"{made['size']:,.0f}", f"{run['base']:.0f}"),
                    *(f"{run['peak']:.0f}", f"{run['anonymous']:.0f}", f"{share:.1%}", f"{run['opened']:.2f}"),
                    *(f"{run['first']:.2f}", f"{run['round']:.2f}", f"{run['processor']:.2f}"),
                )
                print(" ".join(f"{cell:>9}" for cell in cells), flush=True)
                if made["size"] >= 2000 and share > 0.25:
                    sys.exit(f"The peak is {share:.0%} of the data, above a quarter.")
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
