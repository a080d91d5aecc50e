"""Compiling off the loop: constraints are compiled in processes that may be killed."""

from phloem.grammar.service.caches import CompiledConstraint
from phloem.grammar.service.compile_service import CompileService, ServiceStats
from phloem.grammar.service.limits import Limits, Overloaded
from phloem.grammar.service.loader import GrammarLoader
from phloem.grammar.service.support import BackendSupport, SupportReport, check

__all__ = [
    "BackendSupport",
    "CompileService",
    "CompiledConstraint",
    "GrammarLoader",
    "Limits",
    "Overloaded",
    "ServiceStats",
    "SupportReport",
    "check",
]
