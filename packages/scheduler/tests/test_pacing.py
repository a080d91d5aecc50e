"""Chunks are as long as running requests can bear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.scheduler.pacing import Pace

LONGEST = 2048


def cost(tokens, decode_s=0.02, token_s=0.0001, context_s=0.0):
    """Seconds of a step."""
    return decode_s + tokens * token_s + context_s


def test_nothing_is_cut_shorter_before_a_step_was_too_slow():
    assert Pace.start(0.05, LONGEST).chunk == LONGEST


def test_with_the_time_of_a_decode_known_the_second_chunk_keeps_the_target():
    pace = Pace.start(0.05, LONGEST).after(0, 8, cost(0))
    pace = pace.after(LONGEST, 8, cost(LONGEST))
    assert cost(pace.chunk) == pytest.approx(0.05)


@given(
    decode_ms=st.floats(0.1, 40),
    token_us=st.floats(1, 500),
    target_ms=st.floats(1, 200),
    seen=st.booleans(),
)
def test_steps_come_to_the_target_where_it_can_be_kept(decode_ms, token_us, target_ms, seen):
    def seconds(tokens):
        return cost(tokens, decode_ms / 1e3, token_us / 1e6)

    pace = Pace.start(target_ms / 1e3, LONGEST)
    if seen:
        pace = pace.after(0, 1, seconds(0))
    for _ in range(400):
        tokens = int(pace.chunk)
        pace = pace.after(tokens, 1, seconds(tokens))
        assert pace.shortest <= pace.chunk <= LONGEST
    reached = seconds(int(pace.chunk))
    if seconds(LONGEST) <= target_ms / 1e3:
        assert pace.chunk == LONGEST
    elif seconds(pace.shortest) >= target_ms / 1e3:
        assert pace.chunk < pace.shortest * 1.1 + 1
    else:
        assert reached <= target_ms / 1e3 * 1.05 + token_us / 1e6
        assert reached >= target_ms / 1e3 * 0.9 - 2 * token_us / 1e6


def test_it_follows_a_context_that_grows():
    pace = Pace.start(0.05, LONGEST).after(0, 8, cost(0))
    for step in range(60):
        seconds = cost(pace.chunk, token_s=0.0001 * (1 + step / 50))
        pace = pace.after(int(pace.chunk), 8, seconds)
        if step:
            assert seconds <= 0.05 * 1.02


def test_a_target_that_decoding_alone_misses_slows_prompts_down_but_does_not_stop_them():
    pace = Pace.start(0.01, LONGEST).after(0, 8, cost(0)).after(LONGEST, 8, cost(LONGEST))
    assert pace.chunk == pace.shortest == LONGEST // 16


def test_it_grows_again_by_twice_at_most():
    pace = Pace(0.05, LONGEST, 200.0, 0.02)
    assert pace.after(200, 8, cost(200, token_s=0.00001)).chunk == 400


def test_a_short_prompt_tells_nothing_unless_its_step_was_too_slow():
    pace = Pace(0.05, LONGEST, 400.0, 0.02)
    assert pace.after(100, 8, cost(100)) is pace
    assert pace.after(100, 8, cost(100, token_s=0.001)).chunk < 400


def test_steps_in_which_nobody_decodes_do_not_count():
    pace = Pace.start(0.05, LONGEST)
    assert pace.after(LONGEST, 0, 9.0) is pace


def test_one_slow_decode_step_is_smoothed():
    pace = Pace.start(0.05, LONGEST).after(0, 8, 0.02).after(0, 8, 0.07)
    assert pace.decode_s == pytest.approx(0.03)


class TestInTheScheduler:
    @pytest.fixture
    def paced(self, harness, never_ends, overlap):
        """A harness whose steps take what they cost, by its clock."""
        h = harness(
            capacity=8000,
            context_len=2000,
            enable_mixed_chunk=True,
            chunked_prefill_size=512,
            itl_target_ms=50.0,
            max_running_requests=8,
            overlap=overlap,
            script=never_ends,
        )
        h.seconds = []
        run = h.runner._run

        def costly(step):
            tokens = step.batch.num_tokens
            seconds = cost(tokens, token_s=0.0005)
            h.seconds.append((tokens, step.batch.num_rows, seconds))
            h.clock.now += seconds
            return run(step)

        h.runner._run = costly
        h.step = lambda: h.loop.step()
        return h

    def test_running_requests_keep_their_pace_beside_a_long_prompt(self, paced):
        for i in range(3):
            paced.add(f"r{i}", [1 + i] * 5, max_new_tokens=400, ignore_eos=True)
        for _ in range(6):
            paced.step()
        paced.add("long", [1 + i % 40 for i in range(1500)], max_new_tokens=2)
        first = len(paced.seconds)
        for _ in range(30):
            paced.step()
        beside = [s for s in paced.seconds[first:] if s[0] > 10]
        assert len(beside) > 10
        # Under overlap the second chunk is planned before the first one's time is known.
        assert all(seconds <= 0.052 for _, _, seconds in beside[3:])
        assert max(tokens for tokens, _, _ in beside[3:]) > 40

    def test_a_chunk_has_as_many_tokens_as_the_pace_says_beside_the_decodes(self, paced):
        for i in range(3):
            paced.add(f"r{i}", [1 + i] * 5, max_new_tokens=400, ignore_eos=True)
        for _ in range(6):
            paced.step()
        paced.add("long", [1 + i % 40 for i in range(1500)], max_new_tokens=2)
        for _ in range(4):
            paced.step()
        pace = paced.scheduler._pace.chunk
        batch = paced.scheduler.schedule()
        assert (batch.chunks[0].query_len, len(batch.decode)) == (pace, 3)

    def test_alone_a_prompt_is_computed_in_full_chunks(self, paced):
        paced.add("long", [1 + i % 40 for i in range(1500)], max_new_tokens=2)
        for _ in range(6):
            paced.step()
        assert [tokens for tokens, _, _ in paced.seconds[:3]] == [512, 512, 476]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"itl_target_ms": 0, "enable_mixed_chunk": True}, "itl_target_ms is 0: give more than 0"),
        ({"itl_target_ms": 30.0}, "set enable_mixed_chunk and chunked_prefill_size too"),
        ({"itl_target_ms": 30.0, "enable_mixed_chunk": True}, "chunked_prefill_size too"),
    ],
)
def test_a_target_that_nothing_could_follow_is_refused(harness, config, says):
    with pytest.raises(ValueError, match=says):
        harness(**config)
