"""Blocks of seeds and settings, and runs that several processes share."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest

from equifed.config import parse_config
from equifed.results.merge import merged
from equifed.settings import Cluster
from equifed.store import Store
from equifed.studies import Study, blocks


def _config(**cluster: int):
    raw = {
        "data": {"name": "compas"},
        "method": {"name": "fedprox"},
        "run": {"rounds": 2, "seeds": 3},
        "sweep": {"mu": [0, 0.1, 1]},
        "cluster": {name.replace("_", "-"): value for name, value in cluster.items()},
    }
    return parse_config(raw)


@pytest.mark.parametrize(("seeds", "settings"), [(1, 1), (2, 2), (3, 3), (7, 9)])
def test_blocks_hold_every_seed_and_setting_once(seeds, settings):
    cut = blocks(_config(seeds_per_job=seeds, settings_per_job=settings))
    found = [pair for block in cut for pair in itertools.product(block.run.seed_list, block.sweep["mu"])]
    assert sorted(found) == sorted(itertools.product(range(3), [0, 0.1, 1]))
    assert all(len(block.run.seed_list) <= seeds and len(block.sweep["mu"]) <= settings for block in cut)
    workers = [blocks(_config(seeds_per_job=seeds, settings_per_job=settings, workers=many)) for many in (1, 5)]
    assert [[(b.run.seeds, b.sweep) for b in each] for each in workers] == [[(b.run.seeds, b.sweep) for b in cut]] * 2


def _carried_out(folder, workers: int) -> pd.DataFrame:
    config = _config(seeds_per_job=2, settings_per_job=2)
    study = Study(blocks(config), Store(folder), Cluster(workers=workers))
    ended = sorted(study.carry_out(), key=lambda each: each.position)
    assert not any(each.error for each in ended)
    assert not list(folder.glob("study-*"))
    result = merged([each.folder.result() for each in ended])
    assert result.settings.seed_list == [0, 1, 2]
    assert len(result.parameters) == len(result.final_states) == 9
    return result.metrics


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_two_processes_give_the_numbers_of_one(tmp_path):
    pytest.importorskip("ray")
    alone, shared = _carried_out(tmp_path / "alone", 1), _carried_out(tmp_path / "shared", 2)
    pd.testing.assert_frame_equal(alone, shared, check_exact=True)
