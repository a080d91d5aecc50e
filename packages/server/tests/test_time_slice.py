import ctypes
import os
import platform
import struct
import subprocess
import sys
import threading

import pytest

from phloem.server import time_slice

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(os, "sched_getscheduler"),
    reason="time slices are Linux's",
)


def slice_of_this_thread():
    """Nanoseconds, as the kernel tells; None where it does not."""
    if platform.machine() != "x86_64":
        return None
    buffer = ctypes.create_string_buffer(48)
    if ctypes.CDLL(None).syscall(315, 0, buffer, 48, 0):
        return None
    return struct.unpack_from("=Q", buffer, 24)[0] or None


@pytest.fixture
def in_a_thread():
    """Runs a function in a thread of its own, so that the slice of pytest's stays as it is."""

    def run(function):
        found = []
        thread = threading.Thread(target=lambda: found.append(function()))
        thread.start()
        thread.join()
        return found[0]

    return run


def test_a_thread_and_those_that_it_starts_come_soon_and_then_as_usual(in_a_thread):
    def slices():
        usual = slice_of_this_thread()
        if not time_slice.come_soon() or usual is None:
            return None
        short, inherited = slice_of_this_thread(), in_a_thread(slice_of_this_thread)
        assert time_slice.come_as_usual()
        return usual, short, inherited, slice_of_this_thread()

    found = in_a_thread(slices)
    if found is None:
        pytest.skip("the kernel does not tell or take slices of ordinary threads")
    usual, short, inherited, after = found
    assert short == inherited == 100_000
    assert after == usual


def test_the_priority_stays(in_a_thread):
    def priority():
        before = min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
        os.setpriority(os.PRIO_PROCESS, 0, before)
        time_slice.come_soon()
        return before, os.getpriority(os.PRIO_PROCESS, 0)

    before, after = in_a_thread(priority)
    assert after == before


def test_a_scheduling_class_that_somebody_chose_stays(in_a_thread):
    def chosen():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return time_slice.come_soon(), os.sched_getscheduler(0)

    assert in_a_thread(chosen) == (False, os.SCHED_BATCH)


@pytest.mark.parametrize("call", ["sched_getscheduler", "getpriority"])
def test_a_system_that_refuses_is_put_up_with(call, monkeypatch):
    def refuse(*_):
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, call, refuse)
    assert not time_slice.come_soon()


def test_a_machine_that_is_not_known_is_left_alone(monkeypatch):
    monkeypatch.setattr(time_slice.platform, "machine", lambda: "z80")
    assert not time_slice.come_soon()


def test_it_takes_no_privileges(in_a_thread):
    if os.getuid() or not in_a_thread(time_slice.come_soon):
        pytest.skip(
            "the test gives up privileges, of which there are none, or slices are not taken"
        )
    code = (
        "import os; from phloem.server.time_slice import come_soon;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); print(come_soon())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
