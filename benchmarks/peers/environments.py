"""Folders in which peers are installed, kept for the next run.

A folder's stamp says what was installed in it; it is written last, so that what was broken off is
done again. Owns folders, virtual environments and the commands run for them; not what goes where.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.contestant import Say

_STAMP = "installed"
_TAIL = 15
"""Lines of a failed command's output that are told."""


class SetupFailed(Exception):
    """A peer cannot be set up; says why."""


def stamped(folder: Path, wanted: Sequence[str], make: Callable[[], None]) -> None:
    """Have `make` fill a folder, unless its stamp says that `wanted` is what is in it."""
    stamp, text = folder / _STAMP, "\n".join(wanted)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == text:
        return
    stamp.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    make()
    stamp.write_text(text, encoding="utf-8")


def checked(command: Sequence[str | Path], log: Path) -> None:
    """Run a command with its output in a file.

    Raises:
        SetupFailed: it could not be started, or failed; with the end of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # The pins of our own development environment are no business of the peers.
    environment = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
    with log.open("a", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            ).returncode
        except OSError as error:
            raise SetupFailed(f"{command[0]} cannot be run: {error}; install it") from error
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
        told = "\n".join(lines)
        raise SetupFailed(f"{Path(str(command[0])).name} failed ({status}); see {log}:\n{told}")


class Venv:
    """A virtual environment with the Python that runs the benchmark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    def create(self, say: Say) -> None:
        """Make it anew, empty."""
        say(f"making a virtual environment in {self.folder}")
        try:
            venv.create(self.folder, clear=True, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SetupFailed(f"no virtual environment in {self.folder}: {error}") from error

    def install(self, *arguments: str) -> None:
        """`pip install` with these arguments."""
        pip = ("-m", "pip", "install", "--disable-pip-version-check")
        checked([self.python, *pip, *arguments], self.folder / "pip.log")

    def hold(self, release: str, needed: Sequence[str], say: Say) -> None:
        """Hold a release and what it needs, and nothing else; made anew unless it does."""

        def make() -> None:
            self.create(say)
            say(f"installing {release}")
            self.install(release, *needed)

        stamped(self.folder, (release, *needed), make)

    def requirements(self, distribution: str) -> list[str]:
        """What an installed distribution needs on this machine, without extras."""
        code = (
            "import importlib.metadata, json, sys\n"
            "from pip._vendor.packaging.requirements import Requirement\n"
            "all = map(Requirement, importlib.metadata.requires(sys.argv[1]) or ())\n"
            "here = [r for r in all if not r.marker or r.marker.evaluate({'extra': ''})]\n"
            "for r in here: r.marker = None\n"
            "print(json.dumps([str(r) for r in here]))\n"
        )
        done = subprocess.run(
            [self.python, "-c", code, distribution], capture_output=True, text=True
        )
        if done.returncode:
            raise SetupFailed(f"{distribution} does not say what it needs: {done.stderr}")
        found: list[str] = json.loads(done.stdout)
        return found
