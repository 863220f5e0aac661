"""What Ray's nodes are given, what they must have, and what is said where they have not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equifed.errors import DataError, RunError
from equifed.settings import Cluster
from equifed.studies import Job, carry_out
from studies import jobs as works
from studies.conftest import find_tests, nodes

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, the second of which says that it has a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        find_tests(patch)
        with nodes({"num_cpus": 2}, {"num_cpus": 2, "num_gpus": 1}) as cluster:
            yield cluster


def outcomes(jobs: list[Job], load: Any, cluster: Cluster) -> list[tuple[Any, str]]:
    found = sorted(carry_out(jobs, load, cluster))
    assert [each.position for each in found] == list(range(len(jobs)))
    return [(each.value, each.error) for each in found]


@pytest.mark.full
def test_data_go_into_the_object_store_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    loaded, put = Counter[str](), []
    keep = ray.put

    def load(key: str) -> dict[str, np.ndarray]:
        loaded[key] += 1
        return {"x": np.full(300_000, float(key))}

    monkeypatch.setattr(ray, "put", lambda data: put.append(data) or keep(data))
    jobs = [Job(key, works.where, (0.5,), key) for key in "1212"]
    found = outcomes(jobs, load, Cluster(workers=4, address=cluster.address))
    assert [error for _, error in found] == [""] * 4
    assert loaded == {"1": 1, "2": 1}
    assert len(put) == 2
    assert [value[2] for value, _ in found] == [300_000.0, 600_000.0] * 2
    assert len({value[0] for value, _ in found}) == 2  # nodes
    assert not any(value[1] for value, _ in found)  # nobody has a copy of his own


@pytest.mark.full
def test_jobs_go_where_a_gpu_is(cluster: Any) -> None:
    (with_gpu,) = (node.node_id for node in cluster.worker_nodes)
    jobs = [Job(str(number), works.where, (0.2,)) for number in range(4)]
    needs = Cluster(workers=4, address=cluster.address, gpus_per_job=0.5)
    found = outcomes(jobs, lambda key: {"x": np.zeros(1)}, needs)
    assert {value[0] for value, _ in found} == {with_gpu}


@pytest.mark.full
@pytest.mark.parametrize(
    ("need", "said"), [("cpus_per_job", "no node of the cluster has more than 2"), ("gpus_per_job", "more than 1")]
)
def test_a_need_that_no_node_can_meet_is_refused(cluster: Any, need: str, said: str) -> None:
    asked = Cluster(workers=2, address=cluster.address, **{need: 2.5})
    with pytest.raises(RunError, match=f"--{need.replace('_', '-')} asks for 2.5.*{said}"):
        outcomes([Job("a", works.adds, (1,))], lambda key: 1, asked)


@pytest.mark.full
def test_what_fails_costs_no_other(cluster: Any, tmp_path: Path) -> None:
    """A job that fails, one that no process survives, one with which no worker can begin, and two whose data cannot be
    loaded."""

    def load(key: str | None) -> int:
        if key is not None:
            raise DataError(f"There is no file {key}.")
        return 10

    log = tmp_path / "log"
    jobs = [
        Job("fine", works.adds, (1,)),
        Job("fails", works.adds, (-1,)),
        Job("no data", works.adds, (1,), "a.csv"),
        Job("dies", works.dies, (log,)),
        Job("unreadable", works.adds, (works.Unreadable(),)),
        Job("fine", works.adds, (2,)),
        Job("no data", works.adds, (1,), "b.csv"),
    ]
    found = outcomes(jobs, load, Cluster(workers=2, address=cluster.address))
    assert found[0] == (11, "")
    assert found[1] == (None, "ValueError: -1 is below 0")
    assert found[2] == (None, "There is no file a.csv.")
    assert "died 3 times at the same place" in found[3][1]
    assert log.read_text() == "xxx"
    assert "could not begin" in found[4][1]
    assert "No module named 'mine'" in found[4][1]
    assert found[5] == (12, "")
    assert found[6] == (None, "There is no file b.csv.")


@pytest.mark.parametrize(("address", "said"), [("127.0.0.1:1", "refused"), ("no port", "format")])
def test_a_cluster_that_is_not_there(address: str, said: str) -> None:
    with pytest.raises(RunError, match=f"no connection to the Ray cluster at '{address}'.*{said}"):
        outcomes([Job("a", works.adds, (1,))], lambda key: 1, Cluster(workers=2, address=address))


def test_a_ray_that_does_not_start_is_no_defect_of_equifed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is too busy Ray gives up with a bare Exception of several lines."""
    import ray

    def slow(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen because of much.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow)
    job = Job("a", lambda data: 1, ())
    with pytest.raises(
        RunError, match=r"no connection to Ray on this machine: The current node timed out during startup\.$"
    ):
        list(carry_out([job], lambda key: None, Cluster(workers=2)))
