"""Planning: lengths of samples to a Plan of blocks. One policy a file; nothing here knows tokens."""

from cloison.planning.balancing import Balance, Cost, balance, calibrate
from cloison.planning.composition import Composition, compose
from cloison.planning.epochs import Epoch
from cloison.planning.planner import POLICIES, plan
from cloison.planning.plans import Plan, Settings
from cloison.planning.sharding import Share, histogram, merge_histograms, plan_share
from cloison.planning.streams import Stream, stream

__all__ = [
    "POLICIES",
    "Balance",
    "Composition",
    "Cost",
    "Epoch",
    "Plan",
    "Settings",
    "Share",
    "Stream",
    "balance",
    "calibrate",
    "compose",
    "histogram",
    "merge_histograms",
    "plan",
    "plan_share",
    "stream",
]
