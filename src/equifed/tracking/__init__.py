"""Following a run from outside: one interface, `Callback`, and the trackers that are behind it.

Nothing here computes: a callback is told what has happened, after it has been recorded, and cannot change a number. One
that fails is switched off with a warning, and the run goes on.
"""

from equifed.tracking.callback import Callback, Callbacks, Round, Run
from equifed.tracking.mlflow import MLflow
from equifed.tracking.names import asked, make
from equifed.tracking.tensorboard import TensorBoard
from equifed.tracking.wandb import WandB

__all__ = ["Callback", "Callbacks", "MLflow", "Round", "Run", "TensorBoard", "WandB", "asked", "make"]
