"""What a watchdog writes, from a process of its own, since it is the process's only one."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WAIT_FOR_BARK = """
import os, sys, threading, time
from phloem.server.watchdog import Watchdog

read, write = os.pipe()
errors, sys.stderr = sys.stderr, open(write, "w")

def until_it_barks(name):
    said = ""
    while f" in {name}\\n" not in said:
        said += os.read(read, 1 << 20).decode()
    return said
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n" + code],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_turn_that_hangs_has_its_stack_written_and_the_next_one_too():
    done = run(
        _WAIT_FOR_BARK
        + """
dog = Watchdog(0.02, False)
for name in ("first", "second"):
    dog.watch()
    exec(f"def {name}(): return until_it_barks({name!r})\\nbark = {name}()")
    dog.rest()
    print(bark.count("Timeout"))
"""
    )
    assert (done.stdout, done.returncode) == ("1\n" * 2, 0), done.stderr


def test_it_can_end_the_process():
    done = run(
        "import time\nfrom phloem.server.watchdog import Watchdog\n"
        "Watchdog(0.02, True).watch()\ntime.sleep(60)"
    )
    assert done.returncode == 1
    assert "Timeout (0:00:00.025" in done.stderr


def test_turns_that_end_and_rest_are_left_alone():
    done = run(
        """
import faulthandler
calls = []
faulthandler.dump_traceback_later = lambda *args, **options: calls.append(("watch", *args))
faulthandler.cancel_dump_traceback_later = lambda: calls.append("rest")
from phloem.server.watchdog import Watchdog
now = 0.0
dog = Watchdog(300, False, lambda: now)
dog.rest()
for now in (0.0, 0.5, 0.9, 1.0, 1.5):
    dog.watch()
dog.rest()
dog.rest()
dog.watch()
off = Watchdog(0, False, lambda: now)
off.watch()
off.rest()
assert (dog.patience, off.patience) == (1.0, None)
dog.rest()
assert dog.patience is None
print(calls)
"""
    )
    assert done.stdout.strip() == str([("watch", 301.0)] * 2 + ["rest", ("watch", 301.0), "rest"])


@pytest.mark.parametrize("seconds", [0.02, 4.0])
def test_it_never_barks_too_early(seconds):
    """A watch begins before a turn does by as much as it ends later."""
    done = run(
        f"""
import faulthandler
ends = []
from phloem.server.watchdog import Watchdog
now = 0.0
faulthandler.dump_traceback_later = lambda seconds, **options: ends.append(now + seconds)
dog = Watchdog({seconds}, False, lambda: now)
for turn in range(1000):
    now = turn * {seconds} / 97
    dog.watch()
    assert ends[-1] >= now + {seconds}, (now, ends)
    assert ends[-1] <= now + {seconds} * 1.25 + 1e-9, (now, ends)
"""
    )
    assert done.returncode == 0, done.stderr
