"""Studies: many independent jobs, one after another in this process or shared among processes and machines by Ray.

`jobs` says what a job is and carries jobs out in turn; `on_ray` shares them out; `runs` makes jobs of configurations:
each a run folder, so that what a killed process had done is not lost. `comparing` has the runs of several methods on
the same federations, `api` what is called from Python.
"""

from equifed.studies.jobs import Job, Outcome, State, carry_out
from equifed.studies.runs import Finished, Study, blocks, data_key, opened

__all__ = ["Finished", "Job", "Outcome", "State", "Study", "blocks", "carry_out", "data_key", "opened"]
