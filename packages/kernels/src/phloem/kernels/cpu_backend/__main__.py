"""`python -m phloem.kernels.cpu_backend build`: compiles the kernels ahead of their first use."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from phloem.kernels.cpu_backend.build import BuildError, build_prebuilt, recipe_for
from phloem.kernels.cpu_backend.cache import default_cache_dir, ensure
from phloem.kernels.cpu_backend.machine import (
    INSTRUCTION_SETS,
    InstructionSet,
    platform_instruction_sets,
    usable_instruction_sets,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if everything was compiled."""
    options = _parser().parse_args(arguments)
    try:
        for isa in _chosen(options.isa):
            start = time.perf_counter()
            if options.out:
                path = build_prebuilt(isa, options.out, options.jobs)
            else:
                path = ensure(recipe_for(isa), options.cache_dir, options.jobs)
            print(f"{path} ({time.perf_counter() - start:.1f} s)")
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m phloem.kernels.cpu_backend")
    build = parser.add_subparsers(required=True).add_parser(
        "build", help="compile the kernels into the cache, or for other machines into a folder"
    )
    build.add_argument(
        "--isa",
        choices=(*INSTRUCTION_SETS, "best", "all"),
        default="best",
        help="for which instruction sets (default: the best that this processor has)",
    )
    build.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="make the libraries of a wheel here, for any processor with the instruction set",
    )
    build.add_argument("--cache-dir", type=Path, default=default_cache_dir(), metavar="DIR")
    build.add_argument("--jobs", type=int, help="compilers at a time (default: one a core)")
    return parser


def _chosen(isa: str) -> tuple[InstructionSet, ...]:
    if isa == "all":
        return platform_instruction_sets()
    if isa == "best":
        return usable_instruction_sets()[:1]
    return tuple(name for name in INSTRUCTION_SETS if name == isa)


if __name__ == "__main__":
    sys.exit(main())
