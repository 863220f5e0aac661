"""One workload in equifed and in other simulators, one after the other, as one table of ratios.

    make bench-peers

Every peer runs in an environment of its own under build/peers (pinned by `benchmarks/peers/*.lock`, made once), as a
process of its own (`benchmarks/peers/run_*.py`), on the same file of rows. All must reach the same training loss. The
table goes to docs/performance.md, which says how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
BUILD = ROOT / "build" / "peers"
PART = re.compile(r"(?<=<!-- written by make bench-peers -->\n\n).*?(?=\n<!-- end -->)", re.DOTALL)

CLIENTS, ROWS, FEATURES, BATCH, EPOCHS, RATE, ROUNDS = 20, 2400, 50, 128, 2, 0.1, 30
STEPS = CLIENTS * EPOCHS * -(-ROWS // BATCH) * ROUNDS
"""Client steps of one run with one seed."""
TOLERANCE = 3e-4
"""How far a training loss may be from the median of all, as a share of it. Another batch order makes 1e-5, the same
order in every epoch (pfl) 1e-4; one round less makes 7e-4, one epoch instead of two 3e-2."""
TIMEOUT = 900
"""Seconds that a process may take."""

TORCH = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["torch"]
"""What pip is asked for; its builds differ, so that no lock has it."""
ENVIRONMENTS = {"pfl": TORCH, "fedjax": [], "flower": TORCH}
"""What pip installs in each beside the lock that has its name, in benchmarks/peers."""


@dataclass(frozen=True)
class Peer:
    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None
    """One of ENVIRONMENTS; none: that of the project."""
    seeds: int = 1


def equifed(seeds: int, threads: int) -> Peer:
    name = "equifed, 1 seed" if seeds == 1 else f"equifed, per seed of {seeds}"
    name += "" if threads == 1 else f", {threads} threads"
    return Peer(name, "run_equifed.py", (str(seeds), str(threads)), seeds=seeds)


LOADER = Peer("torch loop with DataLoader", "run_torch.py", ("dataloader",))
TIGHT = Peer("tight torch loop", "run_torch.py", ("tight",))
PFL = Peer("pfl 0.6", "run_pfl.py", environment="pfl")
FEDJAX = Peer("FedJAX 0.0.17, its `fed_avg`", "run_fedjax.py", ("fed_avg",), "fedjax")
FEDJAX_PARTS = Peer("FedJAX 0.0.17, bare `for_each_client`", "run_fedjax.py", ("for_each_client",), "fedjax")
FLOWER = Peer("Flower 1.41, simulation engine", "run_flower.py", environment="flower")
ONE, FIVE, TWENTY = (equifed(seeds, 1) for seeds in (1, 5, 20))
ONE_2, FIVE_2, TWENTY_2 = (equifed(seeds, 2) for seeds in (1, 5, 20))
PEERS = (LOADER, TIGHT, FLOWER, PFL, FEDJAX, FEDJAX_PARTS, ONE, FIVE, TWENTY, ONE_2, FIVE_2, TWENTY_2)


@dataclass(frozen=True)
class Measured:
    """One peer; seconds are per seed."""

    whole: float
    """The first run in a process, after imports."""
    process: float
    """The process that makes this run, from its start to its end."""
    step: float
    """Microseconds per client step once everything is warm."""
    losses: Sequence[float]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, peer: Peer, line: Mapping[str, object], process: float) -> Measured:
        """From what the peer's script printed."""
        whole, steady, further = (float(line[name]) / peer.seeds for name in ("whole", "steady", "further"))
        return cls(whole, process / peer.seeds - further, steady * 1e6 / STEPS, line["losses"], line["versions"])

    def best(self, other: Measured) -> Measured:
        """The faster of both in every respect; the losses of both."""
        times = {name: min(getattr(self, name), getattr(other, name)) for name in ("whole", "process", "step")}
        return replace(self, losses=[*self.losses, *other.losses], **times)


Results = Mapping[Peer, Measured]


class PeerError(Exception):
    """An environment that cannot be built, or a script that fails."""


def make_workload(path: Path) -> None:
    """Labels are the sign of a linear function of the features with noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, ROWS, FEATURES)).astype(np.float32)
    y = x @ rng.normal(size=FEATURES) + 3 * rng.normal(size=(CLIENTS, ROWS)) > 0
    np.savez(path, x=x, y=y.astype(np.float32), rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, rate=RATE)


def call(command: Sequence[str], log: Path, environ: Mapping[str, str]) -> str:
    """What a process printed; its log has that too, after its errors. What it started ends with it."""
    with log.open("w") as errors:
        pipes = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        try:
            process = subprocess.Popen(command, env=environ, start_new_session=True, **pipes)
        except OSError as error:
            raise PeerError(str(error)) from None
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise PeerError(f"took more than {TIMEOUT} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.write(output)
    if process.returncode:
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise PeerError(said[-1] if said else f"ended with status {process.returncode}")
    return output


def python_of(name: str | None, base: str) -> str:
    """The interpreter of an environment, which is made now if it is not there as it should be."""
    if name is None:
        return sys.executable
    folder, lock, unlocked = BUILD / name, ROOT / "benchmarks" / "peers" / f"{name}.lock", ENVIRONMENTS[name]
    wanted = json.dumps([base, unlocked, lock.read_text(encoding="utf-8")])
    python, ready = str(folder / "bin" / "python"), folder / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"Making the environment of {name}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        commands = [[base, "-m", "venv", str(folder)]]
        commands.append([*pip, "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(lock)])
        if unlocked:
            commands.append([*pip, *unlocked])
        for command in commands:
            call(command, BUILD / f"{name}.log", os.environ)
        ready.write_text(wanted)
    return python


def environ_of(peer: Peer) -> dict[str, str]:
    """No GPU, one thread for whatever does not ask for more, and nothing sent to anybody."""
    own = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    own["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    own |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    own |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or not peer.environment}
    return inherited | own


def measure(peer: Peer, python: str, workload: Path) -> Measured:
    script = ROOT / "benchmarks" / "peers" / peer.script
    log = BUILD / f"{re.sub('[^a-z0-9]+', '-', peer.name.lower())}.log"
    begin = time.perf_counter()
    output = call([python, str(script), str(workload), *peer.arguments], log, environ_of(peer))
    process = time.perf_counter() - begin
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerError("printed no result")
    return Measured.of(peer, json.loads(lines[-1]), process)


def measure_all(
    peers: Sequence[Peer], base: str, workload: Path, repeats: int
) -> tuple[dict[Peer, Measured], dict[Peer, str]]:
    """The best of several runs of each peer, and why the others failed. All take turns, so that nobody has the quiet
    minutes of the machine alone."""
    results, failures, pythons = dict[Peer, Measured](), dict[Peer, str](), dict[Peer, str]()
    for peer in peers:
        try:
            pythons[peer] = python_of(peer.environment, base)
        except PeerError as error:
            failures[peer] = f"no environment: {error}"
    for turn in range(repeats):
        for peer in [each for each in peers if each not in failures]:
            print(f"{turn + 1} of {repeats}: {peer.name}", file=sys.stderr)
            try:
                measured = measure(peer, pythons[peer], workload)
            except PeerError as error:
                failures[peer] = str(error)
            else:
                results[peer] = results[peer].best(measured) if peer in results else measured
    return {peer: results[peer] for peer in peers if peer not in failures}, failures


def outliers(results: Results) -> dict[Peer, str]:
    """Peers that did not reach the loss that all reach: they did not do the same work."""
    usual = statistics.median([loss for each in results.values() for loss in each.losses if math.isfinite(loss)] or [0])
    found = {}
    for peer, measured in results.items():
        far = [loss for loss in measured.losses if not abs(loss - usual) <= TOLERANCE * usual]
        if far:
            found[peer] = f"training loss {far[0]:.6f} instead of {usual:.6f}"
    return found


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *lines])


def ratios(results: Results) -> str:
    """The table of all peers; how many times as long as equifed with one seed and one thread a step takes."""
    head = ["", "whole run, s", "whole process, s", "µs per client step", "times equifed's", "training loss"]
    lines = []
    for peer, own in results.items():
        times = f"{own.step / results[ONE].step:.2f}" if ONE in results else ""
        step = f"{own.step:.1f}"
        lines.append([peer.name, f"{own.whole:.2f}", f"{own.process:.2f}", step, times, f"{own.losses[0]:.5f}"])
    return table(head, lines)


def targets(results: Results) -> str:
    """What equifed is to reach, and what it reached."""

    def faster(own: Peer, other: Peer, least: str) -> list[str]:
        gain = results[other].step / results[own].step
        return [f"{own.name}: client steps in the time of one of {other.name}", f"{gain:.1f}", f"at least {least}"]

    def sooner(other: Peer) -> list[str]:
        share = results[ONE].whole / results[other].whole
        return [f"{ONE.name}: the first call over the whole run of {other.name}", f"{share:.2f}", "below 1"]

    lines = [faster(ONE, PFL, "20"), faster(ONE, FEDJAX, "6"), faster(ONE, FEDJAX_PARTS, "6")]
    lines += [faster(FIVE, FEDJAX, "10"), faster(FIVE, FEDJAX_PARTS, "10"), sooner(FEDJAX), sooner(FEDJAX_PARTS)]
    lines += [faster(ONE_2, ONE, "1.6"), faster(FIVE_2, FIVE, "1.6"), faster(TWENTY_2, TWENTY, "1.6")]
    return table(["", "measured", "target"], lines)


def machine() -> str:
    """The processor and what the operating system says of it."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next((line.split(":")[1].strip() for line in info.open() if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def facts(results: Results, load: float, repeats: int) -> str:
    """Where, when and of what the figures are."""
    versions = {name: number for each in results.values() for name, number in each.versions.items()}
    listed = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    day = datetime.date.today().isoformat()
    return f"{machine()}; {day}; load {load:.1f} before the run; best of {repeats}.\n{listed}.\n"


def write_page(text: str, page: Path = PAGE) -> None:
    """Between the marks."""
    changed, count = PART.subn(lambda _: text, page.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{page} has no place for the table.")
    page.write_text(changed, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, of which the best counts")
    parser.add_argument("--only", metavar="TEXT", default="", help="only peers with this in their name; for a look")
    parser.add_argument("--python", default=sys.executable, help="makes the environments; FedJAX needs 3.12 or older")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the process that runs then ends too
    BUILD.mkdir(parents=True, exist_ok=True)
    make_workload(workload := BUILD / "workload.npz")
    peers = [peer for peer in PEERS if options.only.lower() in peer.name.lower()]
    load = os.getloadavg()[0]
    results, failures = measure_all(peers, options.python, workload, options.repeats)
    wrong = outliers(results)
    text = ratios(results)
    if results.keys() == set(PEERS):
        text = f"{facts(results, load, options.repeats)}\n{text}\n{targets(results)}"
    print(text)
    for peer, reason in (failures | wrong).items():
        print(f"FAILED: {peer.name}: {reason} (logs: {BUILD.relative_to(ROOT)})", file=sys.stderr)
    if failures or wrong:
        return 1
    if results.keys() == set(PEERS):
        write_page(text)
        print(f"Written to {PAGE.relative_to(ROOT)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
