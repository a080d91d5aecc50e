"""Paths that machines ask every few seconds; apart, since it takes no library to know them."""

from __future__ import annotations

METRICS = "/metrics"
OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/startup"})
"""For load balancers, which have no key; they tell nothing but that the server is there."""
