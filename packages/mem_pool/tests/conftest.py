"""Makes the copies and stores of tests importable: importlib mode puts no folder on the path."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def resident_bytes():
    """A function that tells how much memory this process has touched."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc to measure resident memory")

    def measure():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) << 10

    return measure
