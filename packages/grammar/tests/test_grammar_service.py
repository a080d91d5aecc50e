"""The compile service, over a backend that does what a constraint says."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from concurrent.futures import CancelledError, wait
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

import pytest

from phloem.grammar import Constraint, ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.service import CompileService, Limits, Overloaded
from phloem.grammar.vocabulary import Vocabulary

pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="the tests speak with workers through named pipes"
)
LINUX = sys.platform.startswith("linux")
HERE = Path(__file__).parent
PATIENCE = 60.0
MIB = 1 << 20
UNHURRIED = {"workers": 1, "nice": 0, "seconds": PATIENCE, "brief_seconds": PATIENCE}
"""What lets a busy machine take its time, and does not make it take more."""


def script(text: str) -> Constraint:
    return Constraint.regex(text)


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    import scripted_backend

    return scripted_backend


@pytest.fixture
def serve(backend):
    """Make services that are closed in the end."""
    services = []

    def make(name: str = backend.NAME, **options) -> CompileService:
        limits = Limits(**{**UNHURRIED, **options.pop("limits", {})})
        vocabulary = options.pop("vocabulary", backend.ScriptedVocabulary())
        services.append(CompileService(name, vocabulary, limits=limits, **options))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture(scope="module")
def shared():
    """One service for the tests that harm no worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        import scripted_backend

        limits = Limits(**UNHURRIED)
        vocabulary = scripted_backend.ScriptedVocabulary("mine")
        with CompileService(scripted_backend.NAME, vocabulary, limits=limits) as service:
            yield service


@pytest.fixture
def pipe(tmp_path):
    """Make named pipes."""

    def make(name: str) -> Path:
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    return make


def has_ended(pid: int) -> bool:
    """Wait for the end of a process that need not be a child of ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], PATIENCE)[0])
    finally:
        os.close(handle)


def test_a_constraint_is_compiled_by_a_worker_over_the_vocabulary_of_the_service(shared, backend):
    constraint = script("fingerprint")
    compiled = shared.submit(constraint).result(PATIENCE)
    assert (compiled.key, compiled.backend) == (constraint.key, backend.NAME)
    assert compiled.data == b"mine"


def test_no_worker_is_started_before_it_is_needed_and_one_serves_many(serve):
    service = serve(limits={"workers": 3})
    assert service.worker_pids == []
    for text in ("a", "b", "c"):
        assert service.compile(script(f"echo {text}")).data == text.encode()
    assert len(service.worker_pids) == 1


def test_a_worker_can_be_started_ahead(serve):
    service = serve()
    service.start().result(PATIENCE)
    (pid,) = service.worker_pids
    service.compile(script("echo a"))
    assert service.worker_pids == [pid]


@pytest.mark.parametrize("text", ["\ud800 and é", "'\"\\{}", "x" * 300_000])
def test_any_text_reaches_the_worker_as_it_is(shared, text):
    constraint = script(f"malformed {text}")
    with pytest.raises(GrammarError) as caught:
        shared.compile(constraint)
    assert str(caught.value) == text


def test_errors_come_back_as_what_they_are(shared):
    with pytest.raises(UnsupportedConstraint) as caught:
        shared.compile(script("unsupported /properties/x"))
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/x", "uniqueItems")
    assert caught.value.reason == "leave it out"
    with pytest.raises(ConstraintTooComplex, match="too many states"):
        shared.compile(script("complex too many states"))
    with pytest.raises(GrammarError, match="not well formed") as plain:
        shared.compile(script("malformed not well formed"))
    assert type(plain.value) is GrammarError


def test_a_compiler_that_fails_harms_only_the_constraint_that_it_failed_on(serve):
    service = serve()
    for text, error, message in [
        ("fail on this", GrammarError, "ZeroDivisionError: on this"),
        ("die SIGSEGV", GrammarError, r"died \(signal 11, signal 11\)"),
        ("recurse", ConstraintTooComplex, "nested too deeply"),
        ("exit", GrammarError, "made its compiler fail"),
        ("echo next", None, ""),
    ]:
        if error is None:
            assert service.compile(script(text)).data == b"next"
        else:
            with pytest.raises(error, match=message):
                service.compile(script(text))


@pytest.mark.skipif(not LINUX, reason="address space is bounded where there is /proc")
def test_a_constraint_that_takes_too_much_memory_is_too_complex(serve):
    service = serve(limits={"memory_bytes": 16 * MIB})
    with pytest.raises(ConstraintTooComplex, match="more memory than the 16 MiB"):
        service.compile(script("allocate"))
    assert service.compile(script("echo next")).data == b"next"


@pytest.mark.skipif(not LINUX, reason="address space is known where there is /proc")
def test_a_worker_that_has_grown_is_replaced(serve):
    service = serve(limits={"memory_bytes": 16 * MIB})
    pids = [service.compile(script(f"hoard {size}")).data for size in (1000, 12 * MIB, 2000)]
    assert pids[0] == pids[1] != pids[2]


def test_a_constraint_that_takes_too_long_is_too_complex_and_its_worker_is_killed(serve):
    service = serve(limits={"seconds": 0.2})
    service.start().result(PATIENCE)
    (pid,) = service.worker_pids
    with pytest.raises(ConstraintTooComplex, match=r"longer than 0\.2 seconds"):
        service.compile(script("spin"))
    assert has_ended(pid)


def test_a_caller_that_waits_no_longer_lets_the_constraint_go(serve):
    service = serve()
    with pytest.raises(ConstraintTooComplex, match=r"longer than 0\.01 seconds"):
        service.compile(script("spin"), timeout=0.01)
    assert service.compile(script("echo next")).data == b"next"


def test_who_cancels_the_last_future_ends_the_work(serve, pipe):
    service = serve()
    here = pipe("here")
    futures = [service.submit(script(f"spin {here}")) for _ in range(2)]
    pid = int(here.read_text())
    assert futures[0].cancel()
    assert not futures[1].done()
    assert service.worker_pids == [pid]
    assert futures[1].cancel()
    assert has_ended(pid)
    assert service.compile(script("echo next")).data == b"next"


def test_cancelling_the_task_that_waits_ends_the_work(serve, pipe):
    service = serve()
    here = pipe("here")

    async def client_that_disconnects() -> int:
        future = asyncio.wrap_future(service.submit(script(f"spin {here}")))
        waiting = asyncio.ensure_future(future)
        pid = int(await asyncio.to_thread(here.read_text))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return pid

    assert has_ended(asyncio.run(client_that_disconnects()))


def test_a_constraint_that_is_cancelled_before_its_turn_is_never_compiled(shared, pipe, tmp_path):
    here, proceed, counted = pipe("here"), pipe("proceed"), tmp_path / "counted"
    first = shared.submit(script(f"meet {here} {proceed}"))
    pid = int(here.read_text())
    second = shared.submit(script(f"count {counted}"))
    assert second.cancel()
    proceed.write_text("go")
    assert first.result(PATIENCE).data == b"go"
    shared.compile(script("echo next"))
    assert not counted.exists()
    assert shared.worker_pids == [pid]


def test_equal_constraints_in_flight_are_compiled_once(shared, pipe):
    before = shared.stats
    here, proceed = pipe("here"), pipe("proceed")
    futures = [shared.submit(script(f"meet {here} {proceed}")) for _ in range(8)]
    here.read_text()
    proceed.write_text("once")
    results = {future.result(PATIENCE).data for future in futures}
    assert results == {b"once"}
    assert shared.stats.compiled - before.compiled == 1
    assert shared.stats.from_memory - before.from_memory == 7


def test_owners_do_not_share_what_is_compiled(serve, tmp_path):
    constraint = script("echo mine")
    with serve(folder=tmp_path) as service:
        keys = [service.submit(constraint, who).result(PATIENCE).key for who in ("a", "b", "a", "")]
        assert (service.stats.compiled, service.stats.from_memory) == (3, 1)
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3
    with serve(folder=tmp_path) as service:
        for who in ("b", "c"):
            service.submit(constraint, who).result(PATIENCE)
        assert (service.stats.compiled, service.stats.from_disk) == (1, 1)


def test_other_constraints_are_compiled_while_one_takes_its_time(serve, pipe):
    service = serve(limits={"workers": 2})
    here = pipe("here")
    slow = service.submit(script(f"spin {here}"))
    here.read_text()
    assert service.compile(script("echo quick")).data == b"quick"
    assert not slow.done()


def test_many_that_take_long_hold_up_only_each_other(serve, tmp_path):
    service = serve(limits={"workers": 2, "brief_seconds": 0.05})
    slow = [service.submit(script(f"spin {tmp_path / str(n)}")) for n in range(4)]
    assert service.compile(script("echo quick")).data == b"quick"
    assert service.compile(script("echo another")).data == b"another"
    assert not any(future.done() for future in slow)


@pytest.mark.skipif(not LINUX, reason="the processor time of others is Linux's to tell")
def test_what_made_room_for_others_is_compiled_in_the_end(serve, pipe, tmp_path):
    service = serve(limits={"workers": 2, "brief_seconds": 0.05})
    here, there = pipe("here"), pipe("there")
    slow = [
        service.submit(script(f"second {tmp_path / name} spin {pipe}"))
        for name, pipe in (("a", here), ("b", there))
    ]
    pids = {int(pipe.read_text()) for pipe in (here, there)}
    assert service.compile(script("echo quick")).data == b"quick"
    (stays,) = pids & set(service.worker_pids)
    os.kill(stays, signal.SIGKILL)  # ends the other's spinning: the second time it gives its pid
    assert not pids & {int(future.result(PATIENCE).data) for future in slow}


def test_no_more_wait_than_may(serve, pipe):
    service = serve(limits={"waiting": 1})
    here = pipe("here")
    running = service.submit(script(f"spin {here}"))
    here.read_text()
    waiting = service.submit(script("echo waits"))
    with pytest.raises(Overloaded, match="1 constraints wait"):
        service.compile(script("echo too much"))
    running.cancel()
    assert waiting.result(PATIENCE).data == b"waits"
    assert service.compile(script("echo too much")).data == b"too much"


@pytest.mark.parametrize("way", ["SIGKILL", "SIGSEGV"])
def test_a_worker_that_dies_once_costs_nothing_but_time(serve, tmp_path, way):
    service = serve()
    compiled = service.compile(script(f"second {tmp_path / 'died'} die {way}"))
    assert service.worker_pids == [int(compiled.data)]
    assert service.stats.failed == 0


@pytest.mark.parametrize("way", ["SIGKILL", "SIGTERM"])
def test_workers_that_somebody_kills_are_no_fault_of_the_constraint(serve, way):
    service = serve()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="were killed"):
            service.compile(script(f"die {way}"))
    assert service.stats == (0, 0, 0, 0)
    assert service.compile(script("echo next")).data == b"next"


def test_that_a_constraint_crashed_its_workers_is_soon_forgotten(serve):
    now = [1000.0]
    service = serve(clock=lambda: now[0], limits={"error_seconds": 60, "late_seconds": 5})
    for passed, failed in ((0, 1), (4, 1), (1, 2)):
        now[0] += passed
        with pytest.raises(GrammarError, match="died"):
            service.compile(script("die SIGABRT"))
        assert service.stats.failed == failed


def test_many_constraints_from_many_threads_all_come_back(serve):
    service = serve(limits={"workers": 2})
    futures = {n: service.submit(script(f"echo {n % 50}")) for n in range(400)}
    wait(futures.values(), PATIENCE)
    assert all(future.result().data == b"%d" % (n % 50) for n, future in futures.items())
    assert service.stats.compiled == 50


def test_what_was_compiled_is_remembered_up_to_a_number_of_bytes(serve, tmp_path):
    service = serve(limits={"cache_bytes": 1000})
    for size in (400, 500):
        service.compile(script(f"big {size}"))
    service.compile(script("big 400"))  # used later than the other
    service.compile(script("big 300"))
    assert service.stats.from_memory == 1
    service.compile(script("big 400"))
    assert service.stats.from_memory == 2
    service.compile(script("big 500"))
    assert service.stats.compiled == 4
    service.compile(script("big 2000"))
    service.compile(script("big 2000"))
    assert service.stats.compiled == 6


def test_errors_are_remembered_for_a_while(serve):
    now = [1000.0]
    service = serve(clock=lambda: now[0], limits={"error_seconds": 60})
    for passed, failed in ((0, 1), (59, 1), (1, 2), (10, 2)):
        now[0] += passed
        with pytest.raises(UnsupportedConstraint) as caught:
            service.compile(script("unsupported /x"))
        assert caught.value.pointer == "/x"
        assert service.stats.failed == failed


def test_an_error_that_is_raised_often_does_not_grow(shared):
    depths = set()
    for _ in range(4):
        future = shared.submit(script("malformed x"))
        wait([future], PATIENCE)
        error = future.exception()
        depth, trace = 0, error.__traceback__
        while trace is not None:
            depth, trace = depth + 1, trace.tb_next
        depths.add(depth)
        with pytest.raises(GrammarError):
            raise error
    assert depths == {0}


def test_a_worker_that_was_killed_while_idle_costs_nothing_but_its_start(serve):
    service = serve()
    service.start().result(PATIENCE)
    (pid,) = service.worker_pids
    os.kill(pid, signal.SIGKILL)
    assert not LINUX or has_ended(pid)
    assert service.compile(script("echo a")).data == b"a"


def test_what_a_compiler_prints_goes_to_standard_error(serve, capfd):
    service = serve()
    assert service.compile(script("print hello")).data == b"printed"
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("hello") == 2


def test_workers_run_in_the_background_and_so_does_their_session(serve):
    service = serve(limits={"nice": 10})
    nice, session, _ = service.compile(script("priority 10")).data.split()
    assert nice == session == b"10"


def test_a_worker_that_needs_long_goes_on_at_the_lowest_priority_and_then_as_before(serve):
    service = serve(limits={"brief_seconds": 0.0, "nice": 5})
    service.start().result(PATIENCE)
    (worker,) = service.worker_pids
    nice, _, pid = service.compile(script("priority 19")).data.split()
    assert (nice, int(pid)) == (b"19", worker)
    nice, _, pid = service.compile(script("priority 5")).data.split()
    assert int(nice) in (5, 19), "it began at 5, and may have been lowered since"
    assert int(pid) == worker


@pytest.mark.skipif(not LINUX, reason="the processor time of others is Linux's to tell")
def test_what_waits_uses_no_processor_time_and_may_take_longer_than_the_limit(serve, pipe):
    service = serve(limits={"seconds": 0.5, "patience": 1000})
    service.start().result(PATIENCE)
    here, proceed = pipe("here"), pipe("proceed")
    waiting = service.submit(script(f"meet {here} {proceed}"))
    here.read_text()
    with pytest.raises(FutureTimeout):
        waiting.result(1.0)
    proceed.write_text("at last")
    assert waiting.result(PATIENCE).data == b"at last"


def test_what_waits_for_ever_is_ended_by_the_clock(serve, pipe):
    service = serve(limits={"seconds": 0.1, "patience": 2})
    service.start().result(PATIENCE)
    with pytest.raises(ConstraintTooComplex, match=r"longer than 0\.1 seconds"):
        service.compile(script(f"meet {pipe('here')} {pipe('proceed')}"))


def test_that_a_constraint_took_too_long_is_soon_forgotten(serve):
    now = [1000.0]
    limits = {"seconds": 0.1, "error_seconds": 60, "late_seconds": 5}
    service = serve(clock=lambda: now[0], limits=limits)
    for passed, failed in ((0, 1), (4, 1), (1, 2)):
        now[0] += passed
        with pytest.raises(ConstraintTooComplex):
            service.compile(script("spin"))
        assert service.stats.failed == failed


@pytest.mark.skipif(not LINUX, reason="priorities of threads are Linux's")
def test_a_library_is_loaded_outside_the_limits_and_once(serve):
    """Of `auto`, which finds out with the first grammar in EBNF that it needs one."""
    pytest.importorskip("xgrammar")
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [None], stop_ids=[256])
    limits = {"memory_bytes": 64 * MIB, "nice": 10}
    service = serve("auto", vocabulary=vocabulary, limits=limits)
    service.compile(Constraint.regex("a"))
    (worker,) = service.worker_pids
    for text in ("x", "y"):
        assert service.compile(Constraint.ebnf(f'root ::= "{text}"')).data.startswith(b"xgrammar")
        assert service.worker_pids == [worker]
    assert os.getpriority(os.PRIO_PROCESS, worker) == os.nice(0)
    report = service.check(Constraint.ebnf('root ::= "z"'), ["xgrammar", "none"]).result(PATIENCE)
    assert [each.supported for each in report.backends] == [True, False]
    assert "no grammar backend 'none'" in report.backends[1].message


def test_a_backend_that_cannot_be_made_is_no_fault_of_the_constraint(serve, backend):
    service = serve(backend.ABSENT)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ImportError: a library is not installed"):
            service.compile(script("echo a"))
    assert service.worker_pids == []
    assert service.stats.failed == 0


def test_closing_ends_what_is_waited_for_and_leaves_nothing_behind(serve, pipe):
    service = serve()
    here = pipe("here")
    futures = [service.submit(script(f"spin {here}")), service.submit(script("echo waits"))]
    pid = int(here.read_text())
    service.close()
    for future in futures:
        with pytest.raises(RuntimeError, match="closed"):
            future.result(PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert service.worker_pids == []
    with pytest.raises(RuntimeError, match="closed"):
        service.submit(script("echo a"))
    service.close()


def test_a_service_that_starts_a_worker_can_be_closed_at_once(serve):
    service = serve()
    future = service.submit(script("echo a"))
    service.close()
    with pytest.raises((RuntimeError, CancelledError)):
        future.result(PATIENCE)
    assert service.worker_pids == []


@pytest.mark.skipif(not LINUX, reason="waits for a process that is no child, which is Linux's")
@pytest.mark.parametrize("busy", [True, False])
def test_workers_end_with_the_process_of_the_service_however_it_ends(backend, pipe, tmp_path, busy):
    here = pipe("here")
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import sys
sys.path[:] = {sys.path!r}
import scripted_backend
from phloem.grammar import Constraint
from phloem.grammar.service import CompileService, Limits
vocabulary = scripted_backend.ScriptedVocabulary()
service = CompileService(scripted_backend.NAME, vocabulary, limits=Limits(nice=0))
if {busy}:
    service.submit(Constraint.regex("spin {here}"))
else:
    service.start().result()
    open({str(here)!r}, "w").write(str(service.worker_pids[0]))
sys.stdin.read()
"""
    )
    parent = subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE)
    pid = int(here.read_text())
    parent.kill()
    parent.communicate()
    assert has_ended(pid)


@pytest.fixture(scope="module")
def real():
    """A service of the `fsm` backend over single bytes, with little time for each constraint."""
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [None], stop_ids=[256])
    with CompileService("fsm", vocabulary, limits=Limits(workers=1, nice=0, seconds=3)) as service:
        yield service


@pytest.mark.parametrize(
    "hostile",
    [
        Constraint.regex("(a{1,1000}){1,1000}"),
        Constraint.regex("(" * 5000 + "a" + ")" * 5000),
        Constraint.regex("((("),
        Constraint.choice([f"{n} {n * n}" for n in range(60_000)]),
    ],
    ids=["nested repetition", "deep nesting", "unparsable", "huge choice"],
)
def test_a_hostile_constraint_is_an_error_and_the_next_is_compiled(real, hostile):
    with pytest.raises(GrammarError):
        real.submit(hostile).result(PATIENCE)
    assert real.submit(Constraint.regex("a+b")).result(PATIENCE).data


@pytest.mark.parametrize(
    "limits",
    [
        {"workers": 0},
        {"nice": 20},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"memory_bytes": -1},
        {"patience": 0.5},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)
