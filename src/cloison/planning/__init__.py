"""Planning: lengths of samples to a Plan of blocks. One policy a file; nothing here knows tokens."""

from cloison.planning.composition import Composition, compose
from cloison.planning.planner import POLICIES, plan
from cloison.planning.plans import Plan

__all__ = ["POLICIES", "Composition", "Plan", "compose", "plan"]
