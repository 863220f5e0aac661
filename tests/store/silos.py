"""A tiny federation in CSV files, and configurations for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w


def write_silos(folder: Path, clients: int = 4, rows: int = 40, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for k in range(clients):
        x = rng.normal(size=(rows + 7 * k, 3))
        group = rng.integers(0, 2, len(x))
        label = (x[:, 0] + 0.7 * group + 0.4 * rng.normal(size=len(x)) > 0.3).astype(int)
        frame = pd.DataFrame(x, columns=["a", "b", "c"]).round(5)
        frame["sex"], frame["label"] = np.where(group, "f", "m"), label
        frame.to_csv(folder / f"silo-{k}.csv", index=False)


def config(clients: int = 4, **sections: Any) -> dict[str, Any]:
    """A configuration over the silo files; sections are merged into it."""
    base: dict[str, Any] = {
        "run": {"rounds": 6, "seeds": [0, 3], "clients-per-round": 3},
        "data": {"files": [f"silo-{k}.csv" for k in range(clients)], "label": "label", "sensitive": "sex"},
        "local": {"batch-size": 16, "learning-rate": 0.1},
        "method": {"name": "fedavg"},
    }
    return {name: base.get(name, {}) | sections.get(name, {}) for name in [*base, *(sections.keys() - base.keys())]}


def write_config(folder: Path, **sections: Any) -> Path:
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(config(**sections)))
    return path
