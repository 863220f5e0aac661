"""Follow a run from outside: the interface `Callback`, and trackers that implement it.

Callbacks do not compute: they are notified of an event after it has been recorded, and cannot change results. A
callback that fails is disabled with a warning, and the run continues.
"""

from equifed.tracking.callback import Callback, Callbacks, Round, Run
from equifed.tracking.mlflow import MLflow
from equifed.tracking.names import get_callbacks, make
from equifed.tracking.tensorboard import TensorBoard
from equifed.tracking.wandb import WandB

__all__ = ["Callback", "Callbacks", "MLflow", "Round", "Run", "TensorBoard", "WandB", "get_callbacks", "make"]
