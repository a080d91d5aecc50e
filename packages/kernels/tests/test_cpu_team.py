from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from phloem.kernels.cpu_backend.build import NATIVE, BuildError, compile_library, recipe_for
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.team import Team

PROBE = Path(__file__).parent / "native" / "team_probe.cpp"
THREADS = (1, 2, 4)


@pytest.fixture(scope="module")
def library(tmp_path_factory, native_variant):
    """The team alone, with functions that use it."""
    try:
        recipe = recipe_for("portable", native_variant)
    except BuildError as error:
        pytest.skip(str(error))
    sources = (NATIVE / "team.cpp", NATIVE / "team_abi.cpp", PROBE)
    folder = tmp_path_factory.mktemp("team")
    return Library(compile_library(recipe, folder, sources=sources), "portable")


@pytest.fixture(params=THREADS, ids=lambda n: f"{n} threads")
def team(library, request):
    with Team(library, request.param) as team:
        yield team


def probe(library, name, *argtypes):
    return library.function(name, ctypes.c_void_p, *argtypes, restype=ctypes.c_int64)


def run_counts(library, team, tasks):
    counts = np.zeros(sum(tasks), np.int32)
    tasks = np.array(tasks, np.int32)
    run = library.function(
        "probe_counts", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    )
    run(team.handle, len(tasks), tasks.ctypes.data, counts.ctypes.data)
    return counts


def test_a_team_has_the_threads_that_were_asked_for(library, team):
    size = library.function("phloem_team_size", ctypes.c_void_p, restype=ctypes.c_int)
    assert size(team.handle) == team.threads


@pytest.mark.parametrize("tasks", [[1], [0], [1000], [3, 0, 1, 0], [1, 200, 2, 64, 7]], ids=str)
def test_each_task_of_each_phase_is_done_once(library, team, tasks):
    for _ in range(20):
        assert (run_counts(library, team, tasks) == 1).all()


def test_a_phase_sees_all_that_the_phase_before_wrote(library, team):
    assert probe(library, "probe_order", ctypes.c_int, ctypes.c_int)(team.handle, 2_000, 16) == 0


def test_many_short_runs_come_to_their_end(library, team):
    run = probe(library, "probe_runs", ctypes.c_int, ctypes.c_int)
    assert run(team.handle, 2_000, 3) == 6_000


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("done_before", [0, 1, 5, 9, 10])
def test_a_thread_that_comes_late_does_nothing_again(library, threads, done_before):
    late = probe(library, "probe_late", ctypes.c_int, ctypes.c_int, ctypes.c_int)
    with Team(library, threads) as team:
        for _ in range(20):
            assert late(team.handle, 10, 6, done_before) == 0


def test_scratch_is_aligned_and_of_one_thread_alone(library, team):
    scratch = probe(library, "probe_scratch", ctypes.c_int, ctypes.c_int64)
    assert scratch(team.handle, 300, 1_000) == 0


def test_two_callers_of_one_team_take_turns(library, team):
    run = probe(library, "probe_runs", ctypes.c_int, ctypes.c_int)
    ran = []
    callers = [
        threading.Thread(target=lambda: ran.append(run(team.handle, 500, 4))) for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert ran == [2_000, 2_000]


def test_teams_work_beside_each_other(library):
    run = probe(library, "probe_runs", ctypes.c_int, ctypes.c_int)
    with Team(library, 2) as first, Team(library, 3) as second:
        assert [run(team.handle, 200, 4) for team in (first, second, first)] == [800] * 3


def test_a_team_of_no_threads_is_refused(library):
    with pytest.raises(ValueError, match="a team of 0 threads is none"):
        Team(library, 0)


def test_a_closed_team_says_so_to_whoever_would_use_it(library):
    with Team(library, 2) as team:
        assert (run_counts(library, team, [8]) == 1).all()
    with pytest.raises(RuntimeError, match="this team was closed"):
        run_counts(library, team, [8])


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux has them")
def test_the_threads_end_with_the_team(library):
    def threads():
        return len(os.listdir("/proc/self/task"))

    before = threads()
    team = Team(library, 4)
    assert threads() == before + 3
    team.close()
    team.close()
    assert threads() == before
    team = Team(library, 4)
    del team
    gc.collect()
    assert threads() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit that Linux keeps")
def test_where_the_system_has_too_few_threads_none_stays_and_a_smaller_team_works(
    library, native_variant
):
    if native_variant != "release":
        pytest.skip("sanitizers end a process that gets no memory")
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it, should it wait for threads
        try:
            _exhaust_threads(library)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def _exhaust_threads(library):
    """Ends this process with code 7 if a team of too many threads fails as it should."""
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Memory for the stacks of a few threads; unlike a limit of threads this one binds root too.
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    limit = used + 6 * max(stack, 8 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with pytest.raises(RuntimeError, match="the system has no 200 threads to give"):
        Team(library, 200)
    if len(os.listdir("/proc/self/task")) != 1:
        os._exit(3)
    with Team(library, 2) as team:
        os._exit(7 if (run_counts(library, team, [100]) == 1).all() else 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_threads_that_it_lacks(library):
    with Team(library, 2) as team:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends it, should it wait
            team.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
