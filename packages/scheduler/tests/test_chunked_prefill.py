"""Long prompts in chunks: where they are cut, and who goes on beside them."""

from __future__ import annotations

from phloem.scheduler import Status

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def test_a_long_prompt_is_cut_into_chunks_that_end_on_pages(harness):
    h = harness(chunked_prefill_size=8, page_size=4)
    h.add("a", list(range(1, 30)), max_new_tokens=1)
    h.run()
    assert [s.query_lens.tolist() for s in h.runner.steps] == [[8], [8], [8], [5]]
    assert [s.samples.tolist() for s in h.runner.steps] == [[False], [False], [False], [True]]


def test_only_one_prompt_is_cut_at_a_time(harness, never_ends):
    h = harness(chunked_prefill_size=8, script=never_ends)
    for rid in "abc":
        h.add(rid, [ord(rid) % 40] * 20, max_new_tokens=4)
    while not h.loop.idle:
        h.step()
        held = [r.status for r in h.scheduler._active.values()]
        assert held.count(Status.PREFILL) <= 1


def test_mixed_chunks_let_running_requests_go_on(harness, never_ends):
    h = harness(chunked_prefill_size=8, enable_mixed_chunk=True, script=never_ends)
    h.add("runs", PROMPT[:4], max_new_tokens=30)
    h.step()
    h.add("long", [5] * 40, max_new_tokens=2)
    before = len(h.outputs["runs"].token_ids)
    h.step()
    h.step()
    assert len(h.outputs["runs"].token_ids) == before + 2
    assert h.runner.steps[-1].query_lens.tolist() == [7, 1]


def test_decoding_rows_use_up_prefill_tokens_of_a_mixed_step(harness, never_ends):
    h = harness(max_prefill_tokens=8, enable_mixed_chunk=True, script=never_ends)
    h.add("runs", [1] * 4, max_new_tokens=30)
    h.step()
    for rid, token in (("first", 2), ("second", 3)):
        h.add(rid, [token] * 4, max_new_tokens=30)
    h.step()
    h.step()
    assert [s.query_lens.tolist() for s in h.runner.steps[1:]] == [[4, 1], [4, 1, 1]]


def test_decoding_rows_slow_a_prefill_down_to_a_page_but_do_not_stop_it(harness, never_ends):
    h = harness(
        chunked_prefill_size=8,
        max_prefill_tokens=8,
        page_size=4,
        enable_mixed_chunk=True,
        script=never_ends,
    )
    for token in range(1, 10):
        h.add(f"runs{token}", [token] * 4, max_new_tokens=12)
        h.step()
    h.add("long", [20] * 12, max_new_tokens=2)
    h.step()
    assert h.runner.steps[-1].query_lens.tolist() == [4] + [1] * 9


def test_chunks_are_shared_before_the_rest_of_their_prompt_is_computed(harness, overlap):
    h = harness(overlap=overlap, chunked_prefill_size=8)
    prompt = list(range(1, 29))
    long = h.add("long", prompt, max_new_tokens=4)
    h.step()
    twin = h.add("twin", [*prompt[:24], 40], max_new_tokens=4)
    h.step_until(lambda: twin.status is not Status.WAITING)
    # The last chunk left room in its step; under overlap the third was still in flight then.
    assert long.first_token in (None, twin.admitted)
    assert h.run()["twin"].last.cached_tokens == (16 if overlap else 24)
