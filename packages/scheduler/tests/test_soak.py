"""Thousands of random requests through one scheduler, with everything that can go wrong going wrong
now and then: at the end nothing is left of them.

`pytest packages/scheduler/tests/test_soak.py --soak 20000` takes that many.
"""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from phloem.scheduler import PauseMode, QueueFullError, ScriptedRowError, loop

REQUESTS = 1500
POISON = 49
"""A prompt that begins so has logits that are not finite from some token on."""
VERSIONS = ("default", "two", "three")


ENDS = {
    "refused",
    ("stop", None),
    ("length", None),
    ("abort", None),
    ("abort", 408),
    ("abort", 503),
    ("error", 500),
    ("error", 503),
}
"""How requests end: at a stop, at their length, by an abort, out of time while running or waiting,
with their step or row, retracted too often.
"""


class Soak:
    """Random traffic over one scheduler; every choice comes from a seed."""

    def __init__(self, harness, script, alone, overlap):
        self.random = random.Random(7 + overlap)
        self.alone = alone

        def with_poison(history):
            if history[0] == POISON and len(history) % 11 == 0:
                raise ScriptedRowError("the logits are not finite")
            return script(history)

        self.script = with_poison
        self.h = harness(
            capacity=160,
            page_size=4,
            overlap=overlap,
            script=with_poison,
            context_len=120,
            chunked_prefill_size=32,
            max_prefill_tokens=64,
            max_running_requests=12,
            max_queued_requests=20,
            enable_mixed_chunk=overlap,
            schedule_policy="lpm",
            clip_max_new_tokens=2,
            max_retractions=1,
            queue_timeout=1.0,
        )
        self.expected = {}
        """What each request that has not ended asked for."""
        self.ends = {}
        """How many ended in each way."""
        self.calm = False
        self.made = self.steps = 0
        self._resume_at = None
        self._inject()

    def _inject(self):
        """Let memory and the model fail now and then."""
        manager, runner = self.h.manager, self.h.runner
        for name, share in (("extend", 0.01), ("extend_rows", 0.01)):
            setattr(manager, name, self._failing(getattr(manager, name), share, gives=False))
        together = manager.together

        def failing_together(rows):
            made = together(rows)
            made.extend = self._failing(made.extend, 0.01)
            return made

        manager.together = failing_together
        runner.forward = self._failing(runner.forward, 0.003, MemoryError)
        runner._run = self._failing(runner._run, 0.003, RuntimeError)

    def _failing(self, method, share, error=None, gives=None):
        def maybe(*args):
            if self.calm or self.random.random() >= share:
                return method(*args)
            if error is not None:
                raise error("it was to fail")
            return gives

        return maybe

    def run(self, requests):
        """Until that many were made, and all have ended."""
        self.calm = False
        while self.made < requests:
            self._maybe_arrive()
            self._maybe_meddle()
            self.step()
        self.calm = True
        self.h.scheduler.resume()
        while not self.h.loop.idle:
            self.step()

    def step(self):
        h = self.h
        self.steps += 1
        h.clock.now += 0.05
        if self._resume_at is not None and self.steps >= self._resume_at:
            self._resume_at = None
            h.scheduler.resume()
        for output in h.loop.step():
            self._take(output)
        h.runner.steps.clear()
        if self.steps % 50 == 0:
            h.manager.check()

    def _take(self, output):
        prompt, max_new, ignore_eos, got = self.expected[output.rid]
        got += output.token_ids
        reason = output.finish_reason
        if reason is None:
            return
        del self.expected[output.rid]
        how = (reason.type, reason.status_code)
        self.ends[how] = self.ends.get(how, 0) + 1
        whole = self.alone(prompt, max_new, self.script, ignore_eos)
        if reason.type in ("stop", "length"):
            assert got == whole, output.rid
        else:
            assert got == whole[: len(got)], output.rid

    def _maybe_arrive(self):
        r = self.random
        crowded = self.steps // 150 % 2
        for _ in range(r.choice((0, 0, 1, 3) if crowded else (0, 0, 0, 0, 1))):
            stem = [r.randint(1, 6)] * r.randint(0, 40)
            prompt = [*([POISON] if r.random() < 0.03 else []), *stem, r.randint(1, 40)]
            max_new = r.choice((0, 1, 4, 12, 60))
            rid = f"r{self.made}"
            self.made += 1
            ignore_eos = r.random() < 0.4
            self.expected[rid] = (prompt, max_new, ignore_eos, [])
            try:
                self.h.add(
                    rid,
                    prompt,
                    r.choice(((), ("a",))),
                    max_new_tokens=max_new,
                    ignore_eos=ignore_eos,
                    timeout=r.choice((None, None, 0.7)),
                    top_logprobs=r.choice((None, None, None, 2)),
                )
            except QueueFullError:
                del self.expected[rid]
                self.ends["refused"] = self.ends.get("refused", 0) + 1
            # What the harness would gather is of no use here.
            self.h.outputs.clear()

    def _maybe_meddle(self):
        r, scheduler = self.random, self.h.scheduler
        if self.expected and r.random() < 0.05:
            scheduler.abort(r.choice(list(self.expected)))
        scheduler.abort("never was")
        if r.random() < 0.005:
            scheduler.pause(r.choice((PauseMode.RETRACT, PauseMode.IN_PLACE, PauseMode.ABORT)))
            self._resume_at = self.steps + r.randint(1, 10)
        if r.random() < 0.005:
            scheduler.set_weight_version(r.choice(VERSIONS))
        if not scheduler.num_active:
            self.h.manager.flush()


def memory_after(soak, requests):
    """Bytes in use once that many requests were made and have ended, and the cache is empty."""
    soak.run(requests)
    soak.h.manager.flush()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
def test_nothing_is_left_of_many_requests(
    request, harness, any_script, output_alone, overlap, monkeypatch
):
    # Records of the log, which pytest keeps, hold the frames of the steps that failed.
    monkeypatch.setattr(loop.logger, "disabled", True)
    requests = request.config.getoption("--soak", None) or REQUESTS
    soak = Soak(harness, any_script, output_alone, overlap)
    soak.run(requests // 4)
    tracemalloc.start()
    try:
        before = memory_after(soak, requests // 2)
        grown = memory_after(soak, requests) - before
    finally:
        tracemalloc.stop()
    h = soak.h
    assert not soak.expected
    assert sum(soak.ends.values()) == soak.made >= requests
    assert (h.scheduler.num_active, h.scheduler.num_waiting) == (0, 0)
    assert h.manager.available == h.manager.capacity
    assert h.manager.rows.available == h.manager.rows.max_rows
    assert h.manager.free_tokens == h.manager.capacity
    assert grown < 60_000, f"{grown} bytes more after {requests - requests // 2} requests"
    # Everything that was to happen did.
    assert set(soak.ends) == ENDS, soak.ends
