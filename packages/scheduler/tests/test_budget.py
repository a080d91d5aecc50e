"""Memory budgets: chunks, growth estimates, and one formula for validation and admission."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.scheduler import Request, SamplingParams
from phloem.scheduler.budget import (
    NewTokenRatio,
    PrefillBudget,
    max_total_tokens,
    tokens_needed,
)

PAGES = st.sampled_from([1, 4, 16, 64])


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 1000), PAGES)
def test_what_passes_the_length_check_fits_an_empty_pool(prompt, new, capacity, page):
    capacity -= capacity % page
    if prompt + new <= max_total_tokens(10_000, capacity, page):
        assert tokens_needed(prompt, new, page) <= capacity


@given(st.integers(0, 50), st.integers(1, 400), st.integers(1, 20), st.integers(1, 600), PAGES)
def test_a_chunk_ends_on_a_page_or_at_the_end_and_within_the_budget(
    start_page, wanted, chunk_pages, inputs, page
):
    budget = PrefillBudget(inputs, chunk_pages * page, page)
    start = start_page * page
    taken = budget.take(start, start + wanted)
    assert 0 <= taken <= min(wanted, inputs, chunk_pages * page)
    assert taken == wanted or (start + taken) % page == 0
    budget.spend(taken)
    assert budget.input_tokens == inputs - taken


def test_an_uncut_prompt_over_the_cap_is_computed_alone():
    budget = PrefillBudget(100, None, 1)
    assert budget.take(0, 500) == 500
    budget.spend(500)
    assert budget.take(0, 5) == 0


def test_the_ratio_decays_with_steps_jumps_at_a_retraction_and_resets():
    ratio = NewTokenRatio()
    assert ratio.value == pytest.approx(0.7)
    for _ in range(600):
        ratio.step()
    assert ratio.value == pytest.approx(0.7 * 0.14)
    for _ in range(600):
        ratio.step()
    assert ratio.value == pytest.approx(0.7 * 0.14)
    request = Request("a", np.array([1], np.int32), SamplingParams(), 99, 0, 0.0)
    for token in range(30):
        request.append(token)
    ratio.retracted([request])
    assert ratio.value == pytest.approx((30 + 20) / (99 + 1))
    ratio.reset()
    assert ratio.value == pytest.approx(0.7)


@pytest.mark.parametrize("conservativeness", [0.1, 5.0])
def test_conservativeness_scales_the_ratio_up_to_one(conservativeness):
    assert NewTokenRatio(conservativeness).value == pytest.approx(min(0.7 * conservativeness, 1))
