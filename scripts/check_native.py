"""Run the native kernels under sanitizers, where they stop at what a plain run may survive.

The kernels' tests run against a library with AddressSanitizer and UndefinedBehaviorSanitizer, once
for the best instruction set of this processor and once for portable C++. The team of threads also
runs under ThreadSanitizer, in a program of its own, because Python and torch are full of what that
takes for races. Needs GCC.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from phloem.kernels.cpu_backend.build import NATIVE, recipe_for
from phloem.kernels.cpu_backend.cache import default_cache_dir, ensure
from phloem.kernels.cpu_backend.machine import (
    INSTRUCTION_SETS,
    InstructionSet,
    usable_instruction_sets,
)

TESTS = Path(__file__).resolve().parent.parent / "packages" / "kernels" / "tests"
# These test compilers and files, not kernels.
LEFT_OUT = ("test_cpu_build.py",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; 0 if every one is clean."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--isa",
        action="append",
        choices=INSTRUCTION_SETS,
        help="for this instruction set only; may be repeated",
    )
    parser.add_argument("tests", nargs="*", help="for pytest, instead of all native tests")
    options = parser.parse_args(arguments)
    usable = usable_instruction_sets()
    chosen: list[InstructionSet] = options.isa or list(dict.fromkeys((usable[0], usable[-1])))
    tests = options.tests or list(native_tests())

    failed = [f"tests for {isa}" for isa in chosen if not run_tests(isa, tests)]
    failed += [] if run_stress() else ["the team's threads"]
    print(f"FAILED: {', '.join(failed)}" if failed else "the native kernels are clean")
    return 1 if failed else 0


def native_tests() -> Iterator[str]:
    """The files of tests that run native kernels."""
    for path in sorted(TESTS.glob("test_cpu_*.py")):
        if path.name not in LEFT_OUT:
            yield str(path)


def run_tests(isa: InstructionSet, tests: Sequence[str]) -> bool:
    """Run pytest with the library of this instruction set under AddressSanitizer and UBSan."""
    recipe = recipe_for(isa, "address")
    ensure(recipe, default_cache_dir())  # here, because compilers too would run under the sanitizer
    compiler = recipe.compiler.command
    # The sanitizer has to be there before the interpreter, and C++ before its exceptions are.
    runtimes = [
        printed(*compiler, f"-print-file-name={name}.so") for name in ("libasan", "libstdc++")
    ]
    environment = {
        "LD_PRELOAD": " ".join(runtimes),
        # Interpreters end without giving back all memory.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys")
    native = ("--native-variant=address", f"--native-isa={isa}")
    return run(f"tests for {isa}", [*pytest, *native, *tests], environment)


def run_stress() -> bool:
    """Run the team's stress program under ThreadSanitizer."""
    recipe = recipe_for("portable", "thread")
    own = (TESTS / "native" / "team_probe.cpp", TESTS / "native" / "team_stress.cpp")
    sources = (NATIVE / "team.cpp", NATIVE / "team_abi.cpp", *own)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "team_stress"
        command = (*recipe.compiler.command, *recipe.flags, f"-I{NATIVE}")
        printed(*command, *map(str, sources), "-o", str(program))
        # Addresses must lie where ThreadSanitizer expects them; without the tool, they may.
        return run("the team's threads", [*without_randomization(), str(program)], {})


def without_randomization() -> tuple[str, ...]:
    """What starts a program at fixed addresses, where that is allowed."""
    words = ("setarch", os.uname().machine, "-R")
    try:
        done = subprocess.run([*words, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return words if done.returncode == 0 else ()


def run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Run a command, its output shown; whether it ended well."""
    print(f"==> {name}", flush=True)
    start = time.perf_counter()
    code = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    print(f"==> {name}: code {code} after {time.perf_counter() - start:.0f} s", flush=True)
    return code == 0


def printed(*command: str) -> str:
    """What a command prints on its standard output, without the last line's end."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
