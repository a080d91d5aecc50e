"""The scheduler without a model: replay a trace of requests against a cost model of a machine.

Start with `simulate`: a trace (`read_trace`, `bundled_trace`) and a configuration (`Setup`) give an
`Outcome`. The scheduler, the pool and the prefix tree are the real ones. `python -m
phloem.scheduler simulate` is the command line. It needs phloem-radix-cache.
"""

from phloem.scheduler.simulation.bundled import bundled_names, bundled_trace
from phloem.scheduler.simulation.cost import PRESETS, CostModel, load_cost_model, roofline
from phloem.scheduler.simulation.figures import Figures, Outcome
from phloem.scheduler.simulation.fleet import Fleet, simulate
from phloem.scheduler.simulation.plot import chart
from phloem.scheduler.simulation.report import table
from phloem.scheduler.simulation.routers import router_names
from phloem.scheduler.simulation.setup import Setup
from phloem.scheduler.simulation.trace import Trace, TracedRequest, read_trace, write_trace

__all__ = [
    "PRESETS",
    "CostModel",
    "Figures",
    "Fleet",
    "Outcome",
    "Setup",
    "Trace",
    "TracedRequest",
    "bundled_names",
    "bundled_trace",
    "chart",
    "load_cost_model",
    "read_trace",
    "roofline",
    "router_names",
    "simulate",
    "table",
    "write_trace",
]
