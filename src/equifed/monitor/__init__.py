"""Monitor a model in use: silos hand in counts of decisions by period and group; the server shows gaps over time,
sounds an alarm by a stated rule, and reports which silo changed and which inputs drifted."""

from equifed.monitor.count import Counted, count
from equifed.monitor.handin import HandIn, read_hand_in, revise, write_hand_in
from equifed.monitor.history import History
from equifed.monitor.watch import Watch, watch
