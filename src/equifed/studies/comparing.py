"""Methods on the same federations: which of them fit, and their runs, in turn or shared out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from equifed.config import Config
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import Method
from equifed.results import Result
from equifed.results.merge import merged
from equifed.settings import Cluster
from equifed.simulation import Simulation
from equifed.simulator import Job
from equifed.store import Recording, RunFolder, Store
from equifed.studies.jobs import Watch
from equifed.studies.runs import Study, blocks, data_key, opened
from equifed.verdict import need_validation

PERSONAL_TESTS = 20_000_000
"""Test rows times clients beyond which methods whose clients have models of their own are left out, unless named."""

T = TypeVar("T")
Say = Callable[[str], object]


# -- which methods fit -------------------------------------------------------------------------------------------------


def make_fitting_jobs(
    methods: Mapping[T, Method], job_of: Callable[[T], Job], feds: Sequence[Federation], named: bool, say: Say
) -> dict[T, Job]:
    """Make the job of each method. Unless they were named, methods that do not fit the data are left out.

    Every job is made before the first trains: what is wrong with the last method must not come after hours of others.
    """
    jobs, clients, rows = {}, feds[0].num_clients, len(feds[0].test)
    for key, method in methods.items():
        if not named and method.personal and clients * rows > PERSONAL_TESTS:
            say(
                f"{method.name} is left out: every evaluation would test {clients:,} models on {rows:,} rows each. "
                "Name it among the methods to include it."
            )
            continue
        try:
            jobs[key] = job_of(key)
        except ConfigError as error:
            own = error.section == "method" or error.key in ("clip", "robust")
            if named or not own:  # the settings are no method's fault
                raise
            say(f"{method.name} is left out: {error.text}")
    targets = next((job.settings.target for job in jobs.values()), ())
    if targets and sum(not methods[key].pooled for key in jobs) > 1:
        need_validation(feds)
    return jobs


# -- runs of configurations --------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """A configuration whose run, or runs, have ended."""

    number: int
    """Which of them."""
    folders: list[RunFolder]
    result: Result | None
    """None where something went wrong."""
    error: str = ""


def run_in_turn(
    store: Store,
    runs: Sequence[tuple[Config, Job]],
    feds: Sequence[Federation],
    train: Callable[[int, Recording], Result],
    say: Say,
) -> Iterator[Ended]:
    """Carry out every run in this process: a study of them, so that the same call goes on where it was interrupted and
    repeats nothing that has finished. train: all rounds of a recording, given the run's number."""
    study = Study([config for config, _ in runs], store, Cluster(), {data_key(runs[0][0]): feds})
    if study.before:
        say(study.going_on("runs"))
    numbers = {id(config): number for number, (config, _) in enumerate(runs)}
    results: dict[int, Result] = {}

    def work(federations: Sequence[Federation], config: Config, root: Path, run: str) -> None:
        number = numbers[id(config)]
        recording = opened(store, config, run, lambda config: Simulation(runs[number][1]))
        if recording is None:
            return
        begun = f" continues after round {recording.done} of {config.run.rounds}." if recording.done else ""
        if begun or len(runs) == 1:
            say(f"Run {run}{begun}")
        results[number] = train(number, recording)

    for number, folder, error in study.carry_out(train=work):
        own = RunFolder(store.root / folder.id)
        result = results.pop(number) if number in results else None if error else own.result()
        yield Ended(number, [own], result, error)


def share_out(
    store: Store,
    cluster: Cluster,
    configs: Sequence[Config],
    feds: Sequence[Federation],
    watch: Watch,
    say: Say,
) -> Iterator[Ended]:
    """Share out configurations on the same federations, cut into jobs, among workers. They end in their order; a result
    is that of all its jobs."""
    pieces = [(number, block) for number, config in enumerate(configs) for block in blocks(config)]
    study = Study([block for _, block in pieces], store, cluster, {data_key(configs[0]): feds})
    folders: list[dict[int, RunFolder]] = [{} for _ in configs]
    errors: dict[int, str] = {}
    todo = Counter(number for number, _ in pieces)
    if cluster.workers > len(pieces):
        say(
            f"Note: {len(pieces)} jobs for {cluster.workers} workers. Smaller blocks (--seeds-per-job, "
            "--settings-per-job) make more of them."
        )
    if study.before:
        say(study.going_on())
    following = 0
    for position, folder, error in study.carry_out(watch):
        number = pieces[position][0]
        folders[number][position] = folder
        if error:
            errors.setdefault(number, error)
        todo[number] -= 1
        while following < len(configs) and not todo[following]:
            parts = [folders[following][key] for key in sorted(folders[following])]
            lost = errors.get(following, "")
            result = None if lost else merged([part.result() for part in parts], feds)
            yield Ended(following, parts, result, lost)
            following += 1
