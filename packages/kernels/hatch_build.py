"""Compiles the native kernels into a wheel for one platform, where that is asked for.

Off unless HATCH_BUILD_HOOK_ENABLE_CUSTOM=true stands in the environment of the build: then the
wheel runs without a compiler, and is for this platform alone. `isa` in the hook's settings names
the instruction sets; without it, all of the platform.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BACKEND = "src/phloem/kernels/cpu_backend"


class NativeKernels(BuildHookInterface[Any]):
    """Puts one library for each instruction set beside the sources."""

    _scratch: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what to add and what the wheel is for."""
        if version == "editable":
            return  # an editable install compiles on first use, like any other
        build, machine = self._load("build"), self._load("machine")
        self._scratch = Path(tempfile.mkdtemp())
        for isa in self.config.get("isa") or machine.platform_instruction_sets():
            self.app.display_info(f"compiling the native kernels for {isa}")
            path = build.build_prebuilt(isa, self._scratch)
            target = f"phloem/kernels/cpu_backend/prebuilt/{path.name}"
            build_data["force_include"][str(path)] = target
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{build.platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel by now."""
        if self._scratch:
            shutil.rmtree(self._scratch)

    def _load(self, name: str) -> ModuleType:
        """A module of the backend, without `phloem.kernels`, which needs torch."""
        if "native_kernels" not in sys.modules:
            package = ModuleType("native_kernels")
            package.__path__ = [str(Path(self.root, BACKEND))]
            sys.modules["native_kernels"] = package
        return importlib.import_module(f"native_kernels.{name}")
