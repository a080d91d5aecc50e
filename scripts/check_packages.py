"""Build every distribution of this repository and try each one alone.

Each package becomes an sdist and, from that sdist, a wheel. Both are inspected. Then every wheel
is installed by itself into an empty environment: it must import with its runtime dependencies
only, and pass its own tests once its `test` extra is there. Siblings that it depends on come from
the wheels built here, everything else from the package index at the versions of
`constraints-dev.txt`.

The tests are those of the sdist, run outside the checkout, so nothing of the repository is seen.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
METAPACKAGE = "phloem"


class CheckFailed(Exception):
    """One package broke one rule; the message says which."""


@dataclass(frozen=True)
class Distribution:
    """What one project folder was built into. `module` is None for the metapackage."""

    name: str
    module: str | None
    wheel: Path
    sdist: Path


@dataclass
class Outcome:
    """A line of the closing table."""

    name: str
    problem: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; 0 if every package passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"try only this one (a folder of packages/, or {METAPACKAGE}); may be repeated",
    )
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory(prefix="phloem-packages-") as scratch:
        work = Path(scratch)
        try:
            built = build_all(work / "wheelhouse")
        except CheckFailed as failure:
            say(f"FAILED to build: {failure}")
            return 1
        constraints = write_constraints(work / "constraints.txt", built)
        outcomes = [
            check(distribution, built, constraints, work)
            for distribution in select(built, options.only)
        ]
    print_table(outcomes)
    return 1 if any(outcome.problem for outcome in outcomes) else 0


def build_all(wheelhouse: Path) -> list[Distribution]:
    """The distributions of all folders under `packages/`, then that of the root."""
    folders = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
    built = [build(folder, folder.name, wheelhouse / folder.name) for folder in folders]
    return [*built, build(ROOT, None, wheelhouse / METAPACKAGE)]


def build(folder: Path, module: str | None, target: Path) -> Distribution:
    """Build the sdist of `folder`, and the wheel from that sdist."""
    say(f"building {folder.relative_to(ROOT.parent)}")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, folder, quiet=True)
    (wheel,) = target.glob("*.whl")
    (sdist,) = target.glob("*.tar.gz")
    return Distribution(str(wheel_metadata(wheel)["Name"]), module, wheel, sdist)


def write_constraints(path: Path, built: Iterable[Distribution]) -> Path:
    """Pin the versions of development, and our own names to the wheels built here."""
    pins = (ROOT / "constraints-dev.txt").read_text(encoding="utf-8")
    wheels = "".join(f"{item.name} @ {item.wheel.as_uri()}\n" for item in built)
    path.write_text(pins + wheels, encoding="utf-8")
    return path


def select(built: Sequence[Distribution], only: Sequence[str] | None) -> list[Distribution]:
    """The distributions named, in build order; all of them when none is named."""
    known = {item.module or METAPACKAGE: item for item in built}
    for name in only or ():
        if name not in known:
            raise SystemExit(f"--only {name}: there is no such package; use {', '.join(known)}")
    return [item for name, item in known.items() if not only or name in only]


def check(
    distribution: Distribution, built: Sequence[Distribution], constraints: Path, work: Path
) -> Outcome:
    """Inspect, install and test one distribution in an environment that is thrown away."""
    outcome = Outcome(distribution.name)
    environment = work / "environment"
    try:
        if distribution.module is None:
            inspect_metapackage(distribution, built)
        else:
            inspect_wheel(distribution.wheel, distribution.module)
            inspect_sdist(distribution.sdist)
        with timed(outcome, "install"):
            python = create_environment(environment)
            say(f"installing {distribution.name} alone")
            install(python, distribution.wheel, "", constraints)
            try_imports(python, distribution, built)
        if distribution.module is not None:
            with timed(outcome, "tests"):
                install(python, distribution.wheel, "[test]", constraints)
                say(f"testing {distribution.name} alone")
                run_tests(python, distribution.sdist, work / "unpacked")
    except CheckFailed as failure:
        outcome.problem = str(failure)
        say(f"FAILED {distribution.name}: {failure}")
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    return outcome


def inspect_wheel(wheel: Path, module: str) -> None:
    """A wheel carries its one package, typed, its license, and requirements bounded from below."""
    home = f"phloem/{module}/"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    strangers = [name for name in names if not name.startswith(home) and ".dist-info/" not in name]
    expect(not strangers, f"the wheel holds {strangers}, outside {home}")
    expect(f"{home}py.typed" in names, f"the wheel lacks {home}py.typed")
    expect(any("/licenses/LICENSE" in name for name in names), "the wheel lacks the LICENSE")

    metadata = wheel_metadata(wheel)
    expect(bool(metadata.get_payload()), "the metadata lacks the README")
    for requirement in requirements(metadata):
        capped = [part for part in requirement.specifier if part.operator not in {">=", ">", "!="}]
        expect(
            not capped,
            f"the metadata requires '{requirement}': bound versions from below only, "
            "and pin in constraints-dev.txt",
        )


def inspect_sdist(sdist: Path) -> None:
    """An sdist can be tested and read: tests, README and CHANGELOG are in it."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"):
        expect(needed in names, f"the sdist lacks {needed}")
    expect(any(name.startswith("tests/test_") for name in names), "the sdist lacks tests")


def inspect_metapackage(distribution: Distribution, built: Sequence[Distribution]) -> None:
    """The metapackage holds no module and requires every package."""
    with zipfile.ZipFile(distribution.wheel) as archive:
        modules = [name for name in archive.namelist() if ".dist-info/" not in name]
    expect(not modules, f"the metapackage holds {modules}: it only names the packages")
    required = {item.name for item in requirements(wheel_metadata(distribution.wheel))}
    missing = {item.name for item in built if item.module is not None} - required
    expect(not missing, f"the metapackage does not require {sorted(missing)}")


def wheel_metadata(wheel: Path) -> Message:
    """The METADATA file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(path).decode())


def requirements(metadata: Message) -> list[Requirement]:
    """What the metadata asks for, extras included."""
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def create_environment(folder: Path) -> Path:
    """An empty environment, without pip; returns its interpreter."""
    builder = venv.EnvBuilder(symlinks=os.name != "nt")
    builder.create(folder)
    return Path(builder.ensure_directories(folder).env_exe)


def install(python: Path, wheel: Path, extra: str, constraints: Path) -> None:
    """Install a wheel with this environment's pip; byte code is left to the first import."""
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
    ]
    name = wheel_metadata(wheel)["Name"]
    run(
        *pip,
        *("install", "--quiet", "--no-compile", "--constraint", constraints),
        f"{name}{extra} @ {wheel.as_uri()}",
    )
    run(*pip, "check", quiet=True)


def try_imports(python: Path, distribution: Distribution, built: Iterable[Distribution]) -> None:
    """Import the package; for the metapackage, all of them."""
    everything = [item.module for item in built if item.module is not None]
    modules = everything if distribution.module is None else [distribution.module]
    for module in modules:
        run(python, "-c", f"import phloem.{module}", quiet=True)


def run_tests(python: Path, sdist: Path, folder: Path) -> None:
    """Run the tests of an sdist against the installed package: its own sources are taken away."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (home,) = folder.iterdir()
    shutil.rmtree(home / "src")
    # The one thing of the repository's pytest settings that tests rely on.
    marker = "markers=slow: takes more than a few seconds"
    # What a package needs shows in any of its tests; the slow ones run with the whole repository.
    quick = ("-m", "not slow")
    run(python, "-m", "pytest", "--import-mode=importlib", "-o", marker, *quick, "tests", cwd=home)


def run(*command: str | Path, cwd: Path = ROOT, quiet: bool = False) -> None:
    """Run a command to its end; its output is shown as it comes, or if `quiet` only on failure."""
    # What the surrounding environment tells pip and Python must not reach the empty one. Hypothesis
    # takes its deterministic profile without deadlines from CI.
    inherited = ("PIP_CONSTRAINT", "PIP_VERBOSE", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in inherited}
    environment["CI"] = "true"
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout or "", end="", flush=True)
        raise CheckFailed(f"'{' '.join(words[1:4])} ...' ended with code {done.returncode}")


def expect(holds: bool, problem: str) -> None:
    """Raise `CheckFailed(problem)` unless it holds."""
    if not holds:
        raise CheckFailed(problem)


def say(line: str) -> None:
    """Progress, seen at once."""
    print(f"==> {line}", flush=True)


@contextmanager
def timed(outcome: Outcome, stage: str) -> Iterator[None]:
    """Note in the outcome how many seconds the block took, also if it failed."""
    start = time.perf_counter()
    try:
        yield
    finally:
        outcome.seconds[stage] = time.perf_counter() - start


def print_table(outcomes: Iterable[Outcome]) -> None:
    """One line a package: how long it took, and what is wrong with it."""
    print(f"\n{'package':<24}{'install':>9}{'tests':>9}  result")
    for outcome in outcomes:
        spent = "".join(f"{cell:>9}" for cell in cells(outcome))
        print(f"{outcome.name:<24}{spent}  {outcome.problem or 'ok'}")


def cells(outcome: Outcome) -> Iterator[str]:
    """The seconds of each stage, '-' where it was not reached or does not exist."""
    for name in ("install", "tests"):
        seconds = outcome.seconds.get(name)
        yield "-" if seconds is None else f"{seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
