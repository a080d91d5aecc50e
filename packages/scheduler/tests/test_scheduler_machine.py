"""Random traffic over the real tree, pool and scheduler: nothing is lost or mixed up."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from phloem.scheduler import ScriptedRowError


@pytest.mark.slow
def test_random_traffic(harness, output_alone, any_script):
    class Traffic(RuleBasedStateMachine):
        @initialize(
            overlap=st.booleans(),
            page_size=st.sampled_from([1, 4, 16]),
            chunk=st.sampled_from([None, 16, 48]),
            mixed=st.booleans(),
            policy=st.sampled_from(["fcfs", "lpm"]),
            capacity=st.sampled_from([80, 128, 400]),
            running=st.sampled_from([1, 3, 64]),
            clip=st.sampled_from([2, 4096]),
        )
        def start(self, overlap, page_size, chunk, mixed, policy, capacity, running, clip):
            self.poisoned = set()

            def script(history):
                if int(history[0]) in self.poisoned:
                    raise ScriptedRowError("logits are not finite")
                return any_script(history)

            self.h = harness(
                capacity=capacity,
                page_size=page_size,
                overlap=overlap,
                chunked_prefill_size=chunk,
                enable_mixed_chunk=mixed,
                schedule_policy=policy,
                max_running_requests=running,
                clip_max_new_tokens=clip,
                context_len=100,
                script=script,
            )
            self.accepted = {}
            self.aborted = set()
            self.failed = set()
            self.fail_next = False
            run = self.h.runner._run

            def maybe_fail(step):
                if self.fail_next:
                    self.fail_next = False
                    rows = set(step.batch.rows.tolist())
                    for r in self.h.scheduler._active.values():
                        if r.lease is not None and r.lease.row in rows:
                            self.failed.add(r.rid)
                    raise RuntimeError("step failed")
                return run(step)

            self.h.runner._run = maybe_fail

        @rule(
            stem=st.integers(1, 6),
            shared=st.integers(0, 30),
            own=st.lists(st.integers(1, 5), min_size=1, max_size=12),
            max_new=st.integers(0, 30),
            ignore_eos=st.booleans(),
            stop_ids=st.sampled_from([(), (), (7,), tuple(range(30, 42))]),
            namespace=st.sampled_from([(), ("a",)]),
            crowd=st.sampled_from([1, 1, 1, 8]),
        )
        def arrive(self, stem, shared, own, max_new, ignore_eos, stop_ids, namespace, crowd):
            for twin in range(crowd):
                prompt = [stem] * shared + [*own, *[1] * (twin // 2)]
                self.arrived(prompt, namespace, max_new, ignore_eos, stop_ids)

        def arrived(self, prompt, namespace, max_new, ignore_eos, stop_ids):
            rid = f"r{len(self.h.outputs)}"
            params = {"ignore_eos": ignore_eos, "stop_token_ids": stop_ids}
            try:
                self.h.add(rid, prompt, namespace, max_new_tokens=max_new, **params)
            except ValueError:
                page = self.h.manager.page_size
                assert len(prompt) + max_new > min(100, self.h.manager.capacity - 2 * page + 1)
                return
            self.accepted[rid] = (prompt, max_new, ignore_eos, stop_ids)

        @rule(steps=st.integers(1, 12))
        def go_on(self, steps):
            for _ in range(steps):
                self.h.step()

        @precondition(lambda self: self.accepted)
        @rule(which=st.integers(0, 200))
        def abort(self, which):
            rid = list(self.accepted)[which % len(self.accepted)]
            if self.h.scheduler.abort(rid):
                self.aborted.add(rid)

        @rule(first=st.integers(1, 6))
        def poison(self, first):
            self.poisoned.add(first)
            running = [r for r in self.accepted if self.accepted[r][0][0] == first]
            self.failed.update(running)

        @rule()
        def heal(self):
            # What runs into the poison before it is healed was noted as failed when it came.
            self.failed.update(r for r, a in self.accepted.items() if a[0][0] in self.poisoned)
            self.poisoned.clear()

        @rule()
        def next_step_fails(self):
            self.fail_next = True

        @precondition(lambda self: self.h.scheduler.idle)
        @rule()
        def flush(self):
            while not self.h.loop.idle:
                self.h.step()
            self.h.manager.flush()

        def teardown(self):
            if not hasattr(self, "h"):
                return
            self.heal()
            self.fail_next = False
            outputs = self.h.run()
            for rid, (prompt, max_new, ignore_eos, stop_ids) in self.accepted.items():
                got = outputs[rid]
                assert got.finish_reason is not None, f"{rid} never ended"
                expected = output_alone(prompt, max_new, ignore_eos=ignore_eos, stop_ids=stop_ids)
                if rid in self.aborted:
                    assert got.finish_reason.type == "abort"
                if rid in self.aborted | self.failed:
                    assert got.token_ids == expected[: len(got.token_ids)]
                else:
                    assert got.finish_reason.type in ("stop", "length"), got.finish_reason
                    assert got.token_ids == expected

    Traffic.TestCase.settings = settings(
        max_examples=150,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    Traffic.TestCase("runTest").runTest()
