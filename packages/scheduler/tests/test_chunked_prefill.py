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
