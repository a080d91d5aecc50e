"""Hypothesis profiles of the whole suite.

`hatch run test --hypothesis-profile thorough` looks much further for a counterexample. A test that
names its own number of examples keeps it. The packages do not rely on this file: their tests also
run alone.
"""

from __future__ import annotations

import os

from hypothesis import settings

# Processes share the cores: threads that wait for their next loop should not hold one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Deadlines measure the machine, not the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=2_000)

settings.load_profile("ci" if os.environ.get("CI") else "default")
