"""The process of one system: does what lines of JSON on its stdin ask, answers a line for each.

Run as `python -m benchmarks.radix_cache.worker SYSTEM` by `processes`, in the system's own
environment.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from benchmarks.radix_cache import measure
from benchmarks.radix_cache.system import System, load
from benchmarks.radix_cache.workloads import workload


def answer(system: type[System], ask: dict[str, Any]) -> dict[str, Any]:
    """Do one thing that was asked for."""
    page_size = ask["page_size"]
    match ask["do"]:
        case "play":
            work = workload(ask["workload"], ask["scale"])
            played = measure.play(
                system(page_size, work.capacity), work, ask["sample"], ask["clock"]
            )
            return asdict(played)
        case "micro":
            return measure.micro(system(page_size, 1 << 16))
        case "memory":
            nodes = ask["nodes"]
            capacity = nodes * page_size
            return {"bytes": measure.memory(lambda: system(page_size, capacity), page_size, nodes)}
        case other:
            raise ValueError(f"asked to {other!r}: ask to play, micro or memory")


def main() -> None:
    """Answer until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a peer prints is no answer
    system = load(sys.argv[1])
    for line in sys.stdin:
        answers.write(json.dumps(answer(system, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
