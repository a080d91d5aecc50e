"""What stays as it is from step to step is not done again, and nobody can tell."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from phloem.scheduler import PlainTokens, Status, StepResult
from phloem.scheduler.decode import DecodePlanner
from phloem.scheduler.decode_set import DecodeSet
from phloem.scheduler.intake import ResultIntake

VOCAB = 50
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


class Counted:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch, owner, name):
        self.calls = 0
        inner = getattr(owner, name)

        def counting(*args, **kwargs):
            self.calls += 1
            return inner(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)


@pytest.fixture
def full(harness, overlap, never_ends):
    """A harness in which one request runs and the next waits for its memory."""
    h = harness(capacity=100, max_running_requests=8, overlap=overlap, script=never_ends, rows=8)
    h.add("runs", [1] * 20, max_new_tokens=60, ignore_eos=True)
    h.step()
    h.add("waits", [2] * 20, max_new_tokens=20)
    for i in range(5):
        h.add(f"behind{i}", [3 + i] * 4, max_new_tokens=4)
    return h


def test_a_head_that_does_not_fit_is_not_tried_again_in_every_pass(full, monkeypatch):
    opened = Counted(monkeypatch, full.manager, "open")
    for _ in range(20):
        full.step()
    assert opened.calls <= 2, "once, and once more when the running one's prompt was published"
    full.run()


def test_it_gets_in_at_the_step_after_memory_came_free(full, overlap):
    full.step_until(lambda: full.outputs["runs"].finish_reason)
    full.step()
    assert full.outputs["waits"].last is not None or overlap
    assert full.scheduler.num_waiting == 0
    full.run()


def test_it_gets_in_once_less_growth_is_expected(harness, never_ends):
    """Nothing is published or freed meanwhile: the estimate alone falls, step by step."""
    h = harness(capacity=640, context_len=640, script=never_ends)
    h.add("runs", [1] * 20, max_new_tokens=600)
    h.step()
    # Of 620 free tokens 420 are expected to be used by the other; this one needs 206.
    late = h.add("late", [2] * 100, max_new_tokens=105)
    h.step()
    assert late.status is Status.WAITING
    h.step_until(lambda: late.status is not Status.WAITING)
    assert h.outputs["runs"].finish_reason is None
    h.run()


def test_it_gets_in_when_what_it_needs_is_published_by_others(harness, never_ends):
    """No memory comes free: the prefix that it shares is in flight, and then it is cached."""
    h = harness(capacity=130, max_running_requests=4, overlap=True, script=never_ends)
    h.add("runs", [1] * 60, max_new_tokens=20, ignore_eos=True)
    late = h.add("late", [*[1] * 60, 2], max_new_tokens=10)
    h.step()
    h.step()
    assert late.status is Status.WAITING
    h.step()
    assert late.status is not Status.WAITING
    assert h.run()["late"].last.cached_tokens == 60


def test_a_new_first_in_line_is_tried_at_once(full):
    full.step()
    full.scheduler.abort("waits")
    full.step()
    assert full.scheduler.num_waiting < 5
    full.run()


def test_the_same_set_decodes_until_somebody_joins_or_leaves(harness, overlap, never_ends):
    h = harness(overlap=overlap, script=never_ends)
    h.add("a", PROMPT, max_new_tokens=30)
    h.add("b", PROMPT, max_new_tokens=12)
    sets = []
    schedule = h.scheduler.schedule

    def noting():
        batch = schedule()
        if batch is not None and batch.decode is not None:
            sets.append(batch.decode.members)
        return batch

    h.scheduler.schedule = noting
    for _ in range(9):
        h.step()
    assert len(set(map(id, sets))) == 1
    h.add("c", PROMPT, max_new_tokens=3)
    h.run()
    changes = sum(one is not other for one, other in pairwise(sets))
    assert changes <= 6, "three requests join or leave; under overlap each end shows twice"


def test_a_row_that_went_to_somebody_else_is_not_taken_for_its_last_holder(
    harness, output_alone, overlap
):
    """Rows of the set are the same numbers as before, the requests are others."""
    h = harness(overlap=overlap, max_running_requests=2)
    for i in range(12):
        h.add(f"r{i}", [1 + i] * 6, max_new_tokens=4 + i % 3, temperature=0)
    out = h.run()
    for i in range(12):
        assert out[f"r{i}"].token_ids == output_alone([1 + i] * 6, 4 + i % 3)


def test_a_row_forgets_what_its_last_holder_asked_for(harness, overlap):
    h = harness(overlap=overlap, max_running_requests=1, script=lambda history: len(history) % 50)
    h.add(
        "picky",
        [7] * 10,
        max_new_tokens=9,
        stop_token_ids=(12, 13),
        logit_bias={5: 1.0},
        presence_penalty=1.0,
        min_new_tokens=1,
        top_logprobs=1,
    )
    h.add("plain", [8] * 10, max_new_tokens=9, ignore_eos=True)
    out = h.run()
    assert out["picky"].token_ids == [10, 11, 12]
    assert out["plain"].token_ids == list(range(10, 19))
    sampling = h.runner.steps[-1].sampling
    assert (sampling.logit_bias, sampling.suppressed, sampling.histories) == ((), (), ())
    assert sampling.top_logprobs.tolist() == [-1]


class TestNews:
    def test_of_plain_tokens_are_arrays(self, harness, never_ends):
        h = harness(script=never_ends)
        for rid in "ab":
            h.add(rid, PROMPT, max_new_tokens=9)
        h.step()
        batch = h.scheduler.schedule()
        flat = h.scheduler.launch(batch)
        h.scheduler.process(batch, StepResult(np.array([7, 8], np.int32), flat.query_lens))
        news = h.scheduler.take_outputs()
        (part,) = news.parts
        assert isinstance(part, PlainTokens)
        assert (part.rids, part.token_ids.tolist()) == (["a", "b"], [7, 8])
        assert [o.token_ids for o in news] == [(7,), (8,)]
        assert (len(news), news[1].rid, [o.rid for o in news[:1]]) == (2, "b", ["a"])
        assert (news[0].completion_tokens, news[0].timings.first_token) == (2, 1.0)
        assert not h.scheduler.take_outputs()

    def test_before_a_retraction_tell_of_none(self, harness, never_ends):
        h = harness(capacity=60, script=never_ends, clip_max_new_tokens=2)
        requests = [h.add(rid, [1 + i] * 8, max_new_tokens=45) for i, rid in enumerate("ab")]
        while not any(r.retractions for r in requests):
            batch = h.scheduler.schedule()  # with the news of the step before not taken yet
            if any(r.retractions for r in requests):
                break
            h.scheduler.take_outputs()
            step = h.runner.forward(h.scheduler.launch(batch))
            h.scheduler.process(batch, h.runner.result(step))
        news = h.scheduler.take_outputs()
        assert len(news) == 2
        assert [o.retractions for o in news] == [0, 0]

    def test_of_a_token_and_of_an_abort_after_it_are_two(self, harness, never_ends):
        h = harness(script=never_ends)
        h.add("a", PROMPT, max_new_tokens=9)
        h.step()
        batch = h.scheduler.schedule()
        step = h.runner.forward(h.scheduler.launch(batch))
        h.scheduler.process(batch, h.runner.result(step))
        h.scheduler.abort("a")
        token, end = h.scheduler.take_outputs()
        assert (len(token.token_ids), token.finish_reason, token.timings.finished) == (
            1,
            None,
            None,
        )
        assert (end.token_ids, end.finish_reason.type) == ((), "abort")


class Several:
    """A runner that yields up to `n` tokens a row and step, each the number of its position."""

    def __init__(self, n):
        self.n = n
        self.batches = []

    def forward(self, batch):
        self.batches.append(batch)
        return batch

    def sample(self, step, masks):
        pass

    def result(self, batch):
        counts = np.where(batch.samples, 1 + batch.rows % self.n, 0).astype(np.int32)
        tokens = [
            end + j
            for end, count in zip(batch.seq_lens.tolist(), counts.tolist(), strict=True)
            for j in range(count)
        ]
        return StepResult(np.array(tokens, np.int32), counts)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("capacity", [44, 400])
def test_steps_that_yield_several_tokens_for_some_rows_give_each_its_own(
    harness, page_size, capacity
):
    h = harness(capacity=capacity, page_size=page_size, clip_max_new_tokens=2, eos_token_ids=())
    h.loop._runner = runner = Several(3)
    for i in range(6):
        h.add(f"r{i}", [40 + i] * (3 + i), max_new_tokens=11, stop_token_ids=(12,))
    out = h.run()
    for i in range(6):
        start = 3 + i
        expected = list(range(start, min(start + 11, 13)))
        assert out[f"r{i}"].token_ids == expected
    for batch in runner.batches:
        known = batch.input_ids < 40
        positions = np.concatenate(
            [np.arange(e - q, e) for q, e in zip(batch.query_lens, batch.seq_lens, strict=True)]
        )
        assert (batch.input_ids[known] == positions[known]).all()


class TestShortWays:
    """A decode that goes on as it did is planned and taken in the short way; nobody can tell."""

    def traffic(self, harness, overlap, monkeypatch, seed, short, look=None):
        """Everything that a runner and the clients see of some random traffic. `look` looks at it
        after each step; where it is not given nothing is looked at but what memory is left.
        """
        rng = random.Random(seed)
        if not short:
            monkeypatch.setattr(DecodeSet, "settled", lambda self, table: False)
        h = harness(
            capacity=rng.choice((60, 90, 400)),
            page_size=rng.choice((1, 4)),
            overlap=overlap,
            max_running_requests=rng.choice((2, 5)),
            chunked_prefill_size=rng.choice((None, 8)),
            enable_mixed_chunk=rng.random() < 0.5,
            clip_max_new_tokens=4,
        )
        seen = []
        for step in range(60):
            while rng.random() < (0.3 if step < 40 else 0):
                prompt = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
                h.add(
                    f"r{len(h.outputs)}",
                    prompt,
                    max_new_tokens=rng.randint(1, 16),
                    stop_token_ids=tuple(rng.sample(range(VOCAB), rng.choice((0, 3, 12)))),
                    ignore_eos=rng.random() < 0.3,
                    min_new_tokens=rng.choice((0, 0, 1)),
                    top_logprobs=rng.choice((None, None, None, 0)),
                )
            if h.outputs and rng.random() < 0.1:
                h.scheduler.abort(rng.choice(sorted(h.outputs)))
            h.clock.now += 1.0
            news = [
                (o.rid, o.token_ids, o.finish_reason, o.completion_tokens) for o in h.loop.step()
            ]
            for rid, tokens, *_ in news:
                h.outputs[rid].token_ids += tokens
            seen.append((news, h.manager.available, h.manager.free_tokens))
            if look is not None:
                look(h)
        h.run()
        monkeypatch.undo()
        steps = [
            [getattr(s, name).tolist() for name in ("rows", "seq_lens", "input_ids", "out_slots")]
            for s in h.runner.steps
        ]
        return seen, steps, {rid: out.token_ids for rid, out in h.outputs.items()}

    @pytest.mark.parametrize("seed", range(40))
    def test_are_the_general_one(self, harness, overlap, monkeypatch, seed):
        general = self.traffic(harness, overlap, monkeypatch, seed, short=False)
        assert self.traffic(harness, overlap, monkeypatch, seed, short=True) == general

    @pytest.mark.parametrize("seed", range(10))
    def test_are_the_same_whoever_looks_between_two_steps(
        self, harness, overlap, monkeypatch, seed
    ):
        def look(h):
            h.manager.check()
            for request in h.scheduler.holders:
                assert request.lease.committed <= request.scheduled <= request.lease.allocated
                assert request.scheduled <= request.length
                got = h.outputs[request.rid].token_ids
                assert request.output_ids.tolist() == got

        expected = self.traffic(harness, overlap, monkeypatch, seed, short=True)
        assert self.traffic(harness, overlap, monkeypatch, seed, short=True, look=look) == expected

    def test_have_been_counted_whenever_somebody_looks(self, harness, never_ends):
        h = harness(script=never_ends)
        requests = [h.add(rid, PROMPT, max_new_tokens=150, ignore_eos=True) for rid in "ab"]
        h.loop.step()
        for steps in (1, 2, 9, 70):
            before = requests[0].num_output
            for _ in range(steps):
                h.loop.step()
            for request in requests:
                assert request.num_output == before + steps
                assert (request.pending, request.in_flight) == (0, 0)
                assert request.lease.committed == request.scheduled == request.num_tokens - 1
                tokens = request.tokens
                for n in range(len(PROMPT), len(tokens)):
                    assert tokens[n] == never_ends(tokens[:n])

    def test_are_taken_while_nothing_else_happens(self, harness, overlap, never_ends, monkeypatch):
        h = harness(overlap=overlap, script=never_ends)
        general = Counted(monkeypatch, DecodePlanner, "_ready")
        taken = Counted(monkeypatch, ResultIntake, "take_in")
        for rid in "abc":
            h.add(rid, PROMPT, max_new_tokens=30, ignore_eos=True)
        h.run()
        assert general.calls <= 4
        assert taken.calls <= 4, "the prompts, and how it ended"

    def test_are_left_by_a_row_that_gets_no_token(self, harness, never_ends):
        h = harness(script=never_ends)
        a, b = (h.add(rid, PROMPT, max_new_tokens=9, ignore_eos=True) for rid in "ab")
        h.step()
        h.step()
        batch = h.scheduler.schedule()
        h.scheduler.launch(batch)
        nothing = StepResult(np.array([7], np.int32), np.array([0, 1], np.int32))
        h.scheduler.process(batch, nothing)
        assert (a.num_output, b.num_output) == (2, 3)
        batch = h.scheduler.schedule()
        assert [row.request.rid for row in batch] == ["b"]

    @pytest.mark.parametrize(
        ("counts", "tokens"), [((2, 0), (7, 8)), ((2, 2), (7, 8, 7, 8)), ((1, 2), (7, 7, 8))]
    )
    def test_are_left_where_somebody_gets_several_tokens(self, harness, never_ends, counts, tokens):
        h = harness(script=never_ends)
        rows = [h.add(rid, PROMPT, max_new_tokens=20, ignore_eos=True) for rid in "ab"]
        for _ in range(3):
            h.step()
        before = [row.num_output for row in rows]
        batch = h.scheduler.schedule()
        h.scheduler.launch(batch)
        result = StepResult(np.array(tokens, np.int32), np.array(counts, np.int32))
        h.scheduler.process(batch, result)
        got = [row.num_output - n for row, n in zip(rows, before, strict=True)]
        assert got == list(counts)
        assert rows[0].output_ids[before[0] :].tolist() == list(tokens[: counts[0]])

    def test_are_left_by_a_prompt_that_yields_nothing_while_what_follows_is_in_flight(
        self, harness, never_ends
    ):
        h = harness(script=never_ends, overlap=True)
        request = h.add("a", PROMPT, max_new_tokens=9, ignore_eos=True)
        prompt = h.scheduler.schedule()
        h.scheduler.launch(prompt)
        decode = h.scheduler.schedule()
        h.scheduler.launch(decode)
        h.scheduler.process(prompt, StepResult(np.empty(0, np.int32), np.zeros(1, np.int32)))
        h.scheduler.process(decode, StepResult(np.array([7], np.int32), np.ones(1, np.int32)))
        assert request.output_ids.tolist() == [7]

    def test_take_no_result_that_contradicts_itself(self, harness, never_ends):
        h = harness(script=never_ends)
        for rid in "ab":
            h.add(rid, PROMPT, max_new_tokens=20, ignore_eos=True)
        for _ in range(3):
            h.step()
        batch = h.scheduler.schedule()
        h.scheduler.launch(batch)
        three = StepResult(np.array([7, 8, 9], np.int32), np.ones(3, np.int32))
        assert not h.scheduler._intake.take_in_decode(batch.decode, three, alone=True)

    def test_hold_for_no_step_that_did_not_go_out(self, harness, never_ends):
        h = harness(script=never_ends)
        h.add("a", PROMPT, max_new_tokens=9, ignore_eos=True)
        h.step()
        h.step()
        first, again = h.scheduler.schedule(), h.scheduler.schedule()
        assert first.decode.starts.tolist() == again.decode.starts.tolist()
