"""Random traffic over the real tree, pool and scheduler: nothing is lost or mixed up."""

from __future__ import annotations

import pytest
from constraint_support import MergingTokenizer, WordsMatcher, spell, spread_script
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from phloem.scheduler import PauseMode, ScriptedRowError, Status, policy_names

LANGUAGES = (
    ("abcdefabcdefabcd", "abcdefabcdefabef", "ab", "fade", "facade"),
    ("cdfcdcfcdabe", "cdfcdcfcdabf", "cdb", "eabc", "eabf", "bbbb"),
    ("bf" * 12, "bf" * 12 + "a", "bf" * 12 + "e"),
)
AGING = 10
LONGEST = 100
NO_JUMPS = {"enable_jump_forward": False}


def constraint(language):
    """What `Harness.add` gets for one of the languages."""
    words, steer, breaks_at = language
    return {"matcher": WordsMatcher(words, breaks_at=breaks_at), "steer": steer}


class Waits:
    """Watches that nobody waits for more passes than its policy promises.

    The promise is for policies with a bound, where neither priorities nor tenants come first. Who
    was let in and has to wait again costs others a pass more; that a request may be held back for a
    prefix that is being computed doubles what it may wait.
    """

    def __init__(self, h):
        self.queue = h.scheduler._waiting
        self.scheduler = h.scheduler
        config = h.config
        self.promised = not (
            config.schedule_policy in ("random", "priority")
            or config.uses_priorities
            or config.enable_tenant_fairness
        )
        self.grace = 0 if config.schedule_policy == "fcfs" else -(-LONGEST // AGING)
        self.bounds = {}
        self.requests = []
        self.paused = 0
        """How often somebody had to wait again because of a pause."""

    def came(self, request):
        """A request waits now, behind all that are here; those after it may overtake it a while."""
        for other in self.new():
            if self.waited(other) < self.grace:
                self.bounds[other.rid] += 1
        ahead = self.scheduler.num_waiting - 1 + self.scheduler.num_active
        self.bounds[request.rid] = self.grace + ahead
        self.requests.append(request)

    def check(self):
        """After a step."""
        if not self.promised:
            return
        back = sum(r.retractions for r in self.requests) + self.paused
        for request in self.new():
            waited, bound = self.waited(request), self.bounds[request.rid] + back
            assert waited <= 2 * bound, f"{request.rid} has waited {waited} passes"

    def waited(self, request):
        return self.queue.passes - request.came_at_pass

    def new(self):
        """Who has not been let in yet."""
        waiting = (r for r in self.requests if r.status is Status.WAITING)
        return [r for r in waiting if r.cached_tokens is None]


@pytest.mark.slow
def test_random_traffic(harness, output_alone, pooled_alone, any_script):
    class Traffic(RuleBasedStateMachine):
        @initialize(
            overlap=st.booleans(),
            page_size=st.sampled_from([1, 4, 16]),
            chunk=st.sampled_from([None, 16, 48]),
            mixed=st.booleans(),
            policy=st.sampled_from(policy_names()),
            order=st.fixed_dictionaries(
                {
                    "in_batch_shared_tokens": st.sampled_from([0, 4, 32]),
                    "enable_tenant_fairness": st.booleans(),
                    "priority_preemption_threshold": st.sampled_from([None, None, 0, 1]),
                }
            ),
            capacity=st.sampled_from([80, 128, 400]),
            running=st.sampled_from([1, 3, 64]),
            clip=st.sampled_from([2, 4096]),
            jump=st.booleans(),
        )
        def start(
            self, overlap, page_size, chunk, mixed, policy, order, capacity, running, clip, jump
        ):
            self.poisoned = set()

            def script(history):
                if int(history[0]) in self.poisoned:
                    raise ScriptedRowError("logits are not finite")
                # Unconstrained, the likeliest comes: weights of others matter under a mask.
                return spread_script(history) | {any_script(history): 2000.0}

            self.script = script
            self.h = harness(
                capacity=capacity,
                page_size=page_size,
                overlap=overlap,
                chunked_prefill_size=chunk,
                enable_mixed_chunk=mixed,
                schedule_policy=policy,
                enable_priority_scheduling=order["priority_preemption_threshold"] is not None,
                aging_tokens=AGING,
                lpm_fallback_above=6,
                itl_target_ms=1500.0 if mixed and chunk else None,
                **order,
                max_running_requests=running,
                clip_max_new_tokens=clip,
                context_len=100,
                script=script,
                tokenizer=MergingTokenizer(),
                enable_jump_forward=jump,
            )
            self.languages = {}
            self.pooled = {}
            self.waits = Waits(self.h)
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
            priority=st.integers(-1, 2),
            tenant=st.sampled_from([None, "a", "b"]),
            timeout=st.sampled_from([None, None, None, 25.0]),
            words=st.sampled_from([None, *LANGUAGES]),
            steer=st.booleans(),
            breaks_at=st.sampled_from([None, None, None, None, "", "cd", "bfbfb"]),
            pooling=st.sampled_from([None, None, None, None, "mean", "last"]),
        )
        def arrive(
            self,
            stem,
            shared,
            own,
            max_new,
            ignore_eos,
            stop_ids,
            namespace,
            crowd,
            priority,
            tenant,
            timeout,
            words,
            steer,
            breaks_at,
            pooling,
        ):
            who = {
                "namespace": namespace,
                "priority": priority if self.h.config.uses_priorities else 0,
                "tenant": tenant,
                "timeout": timeout,
            }
            language = None if words is None or pooling else (words, steer, breaks_at)
            if pooling:
                who["pooling"], max_new = pooling, 0
            for twin in range(crowd):
                prompt = [stem] * shared + [*own, *[1] * (twin // 2)]
                self.arrived(prompt, max_new, ignore_eos, stop_ids, language, **who)

        def arrived(self, prompt, max_new, ignore_eos, stop_ids, language, **who):
            rid = f"r{len(self.h.outputs)}"
            params = {"ignore_eos": ignore_eos, "stop_token_ids": stop_ids}
            if language is not None:
                params |= constraint(language)
            try:
                request = self.h.add(rid, prompt, max_new_tokens=max_new, **params, **who)
            except ValueError:
                page = self.h.manager.page_size
                assert len(prompt) + max_new > min(100, self.h.manager.capacity - 2 * page + 1)
                return
            # Who is refused leaves nothing: the next to come takes the same name.
            self.accepted[rid] = (prompt, max_new, ignore_eos, stop_ids)
            if language is not None:
                self.languages[rid] = language
            self.pooled[rid] = who.get("pooling")
            self.waits.came(request)

        @rule(steps=st.integers(1, 12))
        def go_on(self, steps):
            for _ in range(steps):
                self.h.step()
                self.waits.check()

        @precondition(lambda self: self.accepted)
        @rule(which=st.integers(0, 200))
        def abort(self, which):
            rid = list(self.accepted)[which % len(self.accepted)]
            if self.h.scheduler.abort(rid):
                self.aborted.add(rid)

        @rule(
            mode=st.sampled_from(PauseMode),
            steps=st.integers(0, 4),
            version=st.sampled_from([None, "default", "two"]),
        )
        def pause(self, mode, steps, version):
            scheduler = self.h.scheduler
            holders = [r for r in scheduler.holders if r.status is not Status.FINISHED]
            if mode is PauseMode.ABORT:
                self.aborted.update(r.rid for r in (*scheduler._waiting, *holders))
            self.waits.paused += len(holders)
            scheduler.pause(mode)
            for _ in range(steps):
                self.h.step()
            if version is not None:
                scheduler.set_weight_version(version)
            scheduler.resume()

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
                if rid in self.languages:
                    expected = self.constrained_alone(rid)
                else:
                    expected = output_alone(
                        prompt, max_new, ignore_eos=ignore_eos, stop_ids=stop_ids
                    )
                late = got.finish_reason.status_code == 408
                if rid in self.aborted:
                    assert got.finish_reason.type == "abort"
                if late or rid in self.aborted | self.failed:
                    assert got.token_ids == expected[: len(got.token_ids)]
                else:
                    may_break = rid in self.languages and self.languages[rid][2] is not None
                    ends = ("stop", "length", "error") if may_break else ("stop", "length")
                    assert got.finish_reason.type in ends, got.finish_reason
                    assert got.token_ids == expected
                    if self.pooled[rid] is not None:
                        vector = pooled_alone(prompt, self.pooled[rid])
                        assert got.last.embedding.tobytes() == vector.tobytes()

        def constrained_alone(self, rid):
            """The output that a constrained request has without others, overlap and jumps."""
            prompt, max_new, ignore_eos, stop_ids = self.accepted[rid]
            alone = harness(script=self.script, tokenizer=MergingTokenizer(), **NO_JUMPS)
            alone.add(
                rid,
                prompt,
                max_new_tokens=max_new,
                ignore_eos=ignore_eos,
                stop_token_ids=stop_ids,
                **constraint(self.languages[rid]),
            )
            ended = alone.run()[rid]
            text = spell(ended.token_ids)
            words = self.languages[rid][0]
            assert any(word.startswith(text) for word in words)
            if ended.finish_reason.type == "stop" and not stop_ids:
                assert text in words
            return ended.token_ids

    Traffic.TestCase.settings = settings(
        max_examples=150,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    Traffic.TestCase("runTest").runTest()
