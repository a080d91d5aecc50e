"""Outputs tell why no more of a prompt was cached, where that was asked for."""

from __future__ import annotations

from phloem.mem_pool import CacheMiss


def run(h, rid, tokens, **options):
    h.add(rid, tokens, max_new_tokens=2, explain_cache=True, **options)
    h.run()
    return h.outputs[rid].last.cache_miss


def test_the_last_output_has_the_reason(harness):
    h = harness()
    assert run(h, "a", [1, 2, 3, 4]) == CacheMiss("first_seen", 0)
    assert run(h, "b", [1, 2, 3, 4]) is None
    assert run(h, "c", [1, 2, 9, 9]) == CacheMiss("diverged", 2)
    assert run(h, "d", [1, 2, 3, 4], namespace=("other",)) == CacheMiss("first_seen", 0)


def test_who_does_not_ask_is_not_told(harness):
    h = harness()
    h.add("a", [1, 2, 3, 4], max_new_tokens=2)
    h.run()
    assert h.outputs["a"].last.cache_miss is None
