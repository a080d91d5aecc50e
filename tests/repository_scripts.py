"""The repository's scripts as modules, for the tests of what they have."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "scripts"


def load_script(name):
    """`scripts/NAME.py`, loaded anew."""
    spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
