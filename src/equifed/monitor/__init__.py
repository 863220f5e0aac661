"""Watching a model in use: silos hand in counts of decisions by period and group, the server shows gaps over time,
sounds an alarm by a stated rule, and says which silo moved and whose inputs drifted."""

from equifed.monitor.count import Counted, count
from equifed.monitor.handin import HandIn, read_hand_in, revised, write_hand_in
from equifed.monitor.history import History
from equifed.monitor.watch import Watch, watch
