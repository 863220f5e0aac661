"""E2FL's experiments on the small FairMNISTRotate; the full suite checks what E2FL promises, over three seeds."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equifed as ef
from equifed import tree
from equifed.codec import CODECS
from equifed.methods import E2FL
from equifed.protocol import Task
from equifed.simulator import Step
from equifed.simulator.engine import field_bytes
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import unwatched
from equifed_papers.experiments.e2fl import settings as e2fl
from equifed_papers.experiments.e2fl import show
from experiments.command import noting, record

RANKING = 4_251_428
"""Bytes of a ranking of LeNet: 288 edges of 9 bits, 18,432 of 15, 1,605,632 of 21, 1,280 of 11."""


@pytest.fixture(autouse=True)
def digits(needs: Any) -> None:
    needs("mnist")


@pytest.mark.full
def test_the_paper_s_federation() -> None:
    """1,000 clients in 10 groups, the small ones 100 with 60 images each, no image twice; scored on the 10,000 test
    images turned as their own."""
    size = e2fl.SIZES["full"]
    assert sum(size.partition.clients_per_group) == 1000
    assert size.groups == 10
    small = e2fl.SIZES["small"]
    (fed,) = e2fl.federations(small, [0])
    assert fed.num_clients == 100
    assert set(fed.train.sizes) == {60}
    assert fed.client_test is not None
    assert fed.client_groups is not None
    assert set(fed.client_test.sizes) == {10_000}
    for k in (0, 6, 30, 99):
        assert set(fed.rows.s[fed.train[k]]) == set(fed.rows.s[fed.client_test[k]]) == {fed.client_groups[k]}
    held = np.concatenate([fed.train[k] for k in range(100)])
    assert len(np.unique(held)) == 6000


def test_lenet_as_in_the_paper() -> None:
    module = e2fl.SIZES["full"].model.build((1, 28, 28), 10)
    assert [p.numel() for p in module.parameters()] == [288, 18_432, 1_605_632, 1_280]
    assert [(cell.mean, cell.within) for cell in e2fl.edge_cells()] == [
        (288, True),
        (18_432, True),
        (1_605_632, True),
        (1_280, True),
        (1_625_632, True),
    ]
    small = e2fl.SIZES["small"].model.build((1, 28, 28), 10)
    assert sum(p.numel() for p in small.parameters()) == 20_432


@pytest.mark.full
def test_the_bytes_of_lenet() -> None:
    """What a client of the paper's federation sends and receives, with known and with inferred groups."""
    model = ef.models.LeNet()
    module = model.build((1, 28, 28), 10)
    task = Task(module, "classification", 10, 10, 1000, 1, ef.Local(), num_client_groups=10)
    initial = model.initialise(module, np.random.default_rng(0))
    for method, down in (
        (E2FL(), RANKING),
        (E2FL(groups="lowest-loss", num_groups=10), RANKING + 10 * 1_625_632 // 8),
    ):
        begin = initial if method.num_models is None else tree.stack([initial] * method.num_models)
        server = method.init(task, begin)
        (phase,) = method.round
        assert sum(field_bytes(phase, name, value) for name, value in method.sent(server, phase.down).items()) == down
        reply = {"ranking": server.R, "group": torch.zeros((), dtype=torch.int16)}
        assert sum(field_bytes(phase, name, value) for name, value in reply.items()) == RANKING + 2
        # what is counted is what is written
        written = b"".join(CODECS["ranking"].encode(leaf.numpy()) for leaf in server.R.values())
        assert len(written) == RANKING
    assert f"{RANKING / 2**20:.2f} {down / 2**20:.2f}" == "4.05 5.99"


def test_matching_groups() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth, found = rng.integers(0, 4, 30), rng.integers(-1, 4, 30)
        truth[0], found[0] = 3, 3
        best = max(
            np.mean(np.array(order)[found] == np.where(found < 0, -1, truth)) for order in permutations(range(4))
        )
        assert e2fl.matched_accuracy(found, truth) == pytest.approx(best)
    assert e2fl.matched_accuracy(np.array([1, 1, 0]), np.array([0, 0, 1])) == 1
    assert e2fl.matched_accuracy(np.array([-1, -1, -1]), np.array([0, 0, 1])) == 0


@pytest.mark.full
def test_table1_gives_both_scores_of_e2fl() -> None:
    part, _ = show.table1(Request(methods=["E2FL"], seeds=1, rounds=1), unwatched)
    (ours, gm), (result,) = part.rows, part.results
    assert (ours.method, gm.method) == ("E2FL", "E2FL (GM)")
    assert ours.means["group_equity.mean"] == pytest.approx(100 * result.final()["group_equity.mean"].item())
    assert ours.published["group_equity.variance"] == 1.63
    # the global ranking scored by a run of its own
    size = e2fl.SIZES["small"]
    alone = e2fl.simulation(E2FL(use="global"), e2fl.federations(size, [0]), size, 1, 1)
    for _ in alone.rounds():
        pass
    expected = alone.result().final()
    for name in e2fl.SUMMARIES:
        scale = 1e4 if name.endswith("variance") else 100
        assert gm.means[name] == pytest.approx(scale * expected[name].item())


@pytest.mark.full
def test_every_published_number_of_table1_is_a_cell() -> None:
    """Means over seeds are judged by noise, bytes by the digits that are printed: with known groups, the ten masks that
    the paper counts need not come down."""
    published = {figure: value for (row, figure), value in e2fl.published_figures(1).items() if row == "E2FL"}
    values = {name: [published[name] - 0.5, published[name] + 0.4] for name in e2fl.SUMMARIES}
    row = e2fl.Row("E2FL", 1, {}, {}, published, 0.0, 0.0, np.nan, 0.0, values)
    cells = [*row.cells, *e2fl.byte_cells("E2FL", E2FL(), 1, "mnist", 10, 10)]
    assert {cell.metric: cell.published_mean for cell in cells} == published
    assert [cell.metric for cell in cells if not cell.within] == ["mib_down"]
    assert [cell.mean for cell in cells[-2:]] == pytest.approx([(RANKING + 2) / 2**20, RANKING / 2**20])


def test_tables_say_what_they_do_not_know() -> None:
    with pytest.raises(ef.ConfigError, match="huge"):
        next(show.table1(Request(datasets=["huge"]), unwatched))
    with pytest.raises(ef.ConfigError, match="fedprox"):
        next(show.table1(Request(methods=["fedprox"]), unwatched))


@pytest.mark.full  # 8 CPU seconds of training; the other papers' tests go through the command
def test_figure4_on_the_command_line(tmp_path: Path) -> None:
    points = record("e2fl/figure4", "--seeds", "1", "--rounds", "1", folder=tmp_path)["points"]
    assert {(point["round"], point["how"]) for point in points} == {
        (1, how) for how in ("lowest-loss", "one-shot", "binary")
    }


@pytest.mark.full
def test_what_e2fl_promises() -> None:
    """Three seeds, 50 rounds: the variance between groups is below FedAvg's and q-FFL's, at a mean accuracy at most 2
    points lower; clients find their group by the lowest loss, and the server by clustering."""
    found: dict[str, e2fl.Row] = {}
    labels = ["FedAvg", "q-FFL", "E2FL", "E2FL (lowest loss)", "E2FL (rank clustering)"]
    for part in show.table1(Request(methods=labels, seeds=3, rounds=50), unwatched):
        found |= {row.method: row for row in part.rows}
    ours = found["E2FL"].means
    for other in ("FedAvg", "q-FFL"):
        theirs = found[other].means
        assert ours["group_equity.variance"] < theirs["group_equity.variance"]
        assert ours["client_equality.variance"] < theirs["client_equality.variance"]
        for mean in ("group_equity.mean", "client_equality.mean"):
            assert ours[mean] > theirs[mean] - 2
    assert found["E2FL (lowest loss)"].group_accuracy >= 0.9
    assert found["E2FL (rank clustering)"].group_accuracy >= 0.9


@pytest.mark.full
def test_clients_find_their_group_among_known_ones() -> None:
    steps: list[Step] = []
    (part,) = show.figure4(Request(seeds=3, rounds=50), noting(steps))
    assert len(steps) == 50
    for how in ("lowest-loss", "one-shot", "binary"):
        last = [point["accuracy"] for point in part.rows if (point["how"], point["round"]) == (how, 50)]
        assert len(last) == 3
        if how == "lowest-loss":
            assert min(last) >= 0.9
