"""How much faster two workers carry out a study than one.

    python benchmarks/studies.py [--data adult] [--methods kffl,q-ffl,fedavg,fedprox] [--rounds 250] [--seeds 8]
                                 [--seeds-per-job 4] [--workers 2] [--repeats 2]

Every method with every block of seeds is a job. The same jobs are carried out one after another in this process, which
is `--workers 1`, and then by workers of Ray on this machine, again and again in turns; their numbers must be the same.

    one             seconds of one process
    many            seconds of several, as a user waits for them: Ray is started, and every worker imports equifed
    without start   the same from when Ray runs; workers still import
    from CPU time   what the ratio would be on quiet cores, also where this machine is not quiet: CPU seconds of one
                    process over those of the busiest worker, its start included, plus those of the driver

The data are loaded and the compiled loops are on disk before anything is measured. A repeat takes some two minutes of
one quiet core and then one minute of two. Set OMP_NUM_THREADS=1, so that one process is one core.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from equifed.config import Config, load_federations, parse_config
from equifed.federation import Federation
from equifed.results.merge import merged
from equifed.settings import Cluster
from equifed.store import Store
from equifed.studies import Study, blocks, data_key
from equifed.studies.on_ray import connected
from equifed.studies.runs import train


@dataclass(frozen=True)
class Measured:
    """A study that was carried out."""

    seconds: float
    starting: float
    """Of these, until Ray ran."""
    driver: float
    """CPU seconds of this process."""
    workers: Sequence[float]
    """CPU seconds of every other process that worked on jobs, from its own start on."""
    metrics: pd.DataFrame
    """Of all jobs, in their order."""


def timed(federations: Sequence[Federation], config: Config, root: Path, id: str) -> None:
    """A job; beside its run it leaves who worked on it, and how many CPU seconds that process has had in its life."""
    train(federations, config, root, id)
    (root / f"{id}.cpu").write_text(json.dumps([os.getpid(), time.process_time()]))


def carried_out(configs: Sequence[Config], loaded: Mapping[Any, Sequence[Federation]], workers: int) -> Measured:
    cluster = Cluster(workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        study = Study(configs, Store(folder), cluster, loaded)
        began, cpu = time.perf_counter(), time.process_time()
        if workers == 1:
            starting, ended = 0.0, list(study.carry_out(train=timed))
        else:
            with connected(cluster):
                starting = time.perf_counter() - began
                ended = list(study.carry_out(train=timed))
        seconds, driver = time.perf_counter() - began, time.process_time() - cpu
        assert not any(each.error for each in ended), ended
        spent: dict[int, float] = {}
        for path in Path(folder).glob("*.cpu"):
            pid, used = json.loads(path.read_text())
            spent[pid] = max(used, spent.get(pid, 0.0))
        spent.pop(os.getpid(), None)
        ended.sort(key=lambda each: each.position)
        results = [each.folder.result() for each in ended]
        metrics = pd.concat([merged([result]).metrics for result in results], ignore_index=True)
    return Measured(seconds, starting, driver, list(spent.values()), metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="adult")
    parser.add_argument("--methods", default="kffl,q-ffl,fedavg,fedprox")
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seeds-per-job", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    configs = [
        parse_config(
            {
                "data": {"name": asked.data},
                "method": {"name": name},
                "run": {"rounds": asked.rounds, "seeds": asked.seeds, "threads": 1},
                "cluster": {"seeds-per-job": asked.seeds_per_job},
            }
        )
        for name in asked.methods.split(",")
    ]
    loaded = {data_key(configs[0]): load_federations(configs[0])}
    jobs = [block for config in configs for block in blocks(config)]
    short = [replace(config, run=replace(config.run, rounds=1)) for config in configs]
    carried_out(short, loaded, 1)
    print(f"{len(jobs)} jobs: {asked.methods} on {asked.data}, {asked.rounds} rounds, {asked.seeds_per_job} seeds each")
    ratios: dict[str, list[float]] = {"many": [], "without start": [], "from CPU time": []}
    for repeat in range(asked.repeats):
        one, many = carried_out(jobs, loaded, 1), carried_out(jobs, loaded, asked.workers)
        pd.testing.assert_frame_equal(one.metrics, many.metrics, check_exact=True)
        found = {
            "many": one.seconds / many.seconds,
            "without start": one.seconds / (many.seconds - many.starting),
            "from CPU time": one.driver / (max(many.workers) + many.driver),
        }
        for name, ratio in found.items():
            ratios[name].append(ratio)
        print(
            f"{repeat + 1}: one {one.seconds:.1f} s (CPU {one.driver:.1f}), "
            f"{asked.workers} workers {many.seconds:.1f} s (start {many.starting:.1f}; "
            f"CPU {', '.join(f'{each:.1f}' for each in many.workers)}, driver {many.driver:.1f})",
            flush=True,
        )
    print("faster, median (and range):")
    for name, values in ratios.items():
        print(f"  {name:14} {median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
