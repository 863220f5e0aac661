"""The simulator: whole federations, all seeds and all sweep values, in one vectorised computation.

`job` resolves and checks the computation, `loop` is the round loop, `lanes` and `reference` are its engines, `evaluate`
computes scores; `equifed.simulation` combines them. Other packages use the names below; an engine outside this package
also uses `equifed.simulator.engine`.
"""

from equifed.simulator.engine import Message, Rejection, State
from equifed.simulator.evaluate import Evaluator
from equifed.simulator.job import Job, JobRun, check_swept, make_job
from equifed.simulator.lanes import LanesEngine
from equifed.simulator.loop import RoundLog, Step, rounds
from equifed.simulator.reference import Reference, gather
from equifed.simulator.tables import Tables, make_tables
