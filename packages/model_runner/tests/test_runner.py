import threading

import numpy as np
import pytest
import torch

from phloem.model_runner.sampler import NOT_FINITE, NOTHING_ALLOWED
from phloem.scheduler import RELAYED, SamplingParams, TokenHistory, TokenMasks

PROMPT = [5, 9, 200, 31, 7]


@pytest.fixture(params=[False, True], ids=["inline", "overlap"])
def driver(request, drive, tiny_model):
    return drive(tiny_model, overlap=request.param)


def token_mask(*allowed):
    bits = np.zeros(256, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view("<i4")


def test_a_middle_chunk_yields_no_token_and_needs_no_sampling(driver):
    step = driver.runner.forward(driver.batch((0, PROMPT, 5), samples=[False]))
    result = driver.runner.result(step)
    assert result.token_ids.tolist() == []
    assert result.counts.tolist() == [0]
    assert result.logprobs is None


def test_results_are_ragged_in_row_order(driver):
    alone = [driver.run((r, PROMPT[r:], 5 - r)).token_ids[0] for r in range(4)]
    parts = [(r, PROMPT[r:], 5 - r) for r in range(4)]
    result = driver.run(*parts, samples=[True, False, False, True])
    assert result.counts.tolist() == [1, 0, 0, 1]
    assert result.token_ids.tolist() == [alone[0], alone[3]]
    assert result.token_ids.dtype == result.counts.dtype == np.int32


def test_relayed_tokens_are_those_sampled_for_the_row(driver):
    first = driver.run((0, PROMPT, 5), (3, PROMPT[1:], 4)).token_ids.tolist()
    known = driver.run((3, [first[1]], 5), (0, [first[0]], 6)).token_ids.tolist()
    driver.run((0, PROMPT, 5), (3, PROMPT[1:], 4))
    assert driver.run((3, [RELAYED], 5), (0, [RELAYED], 6)).token_ids.tolist() == known


def test_the_row_table_may_change_once_forward_has_returned(driver):
    expected = driver.run((0, PROMPT, 5)).token_ids.tolist()
    step = driver.enqueue((0, PROMPT, 5))
    driver.table[:] = 0
    assert driver.runner.result(step).token_ids.tolist() == expected


def test_a_step_that_was_not_sampled_has_no_result(driver):
    step = driver.runner.forward(driver.batch((0, PROMPT, 5)))
    with pytest.raises(RuntimeError, match="call sample before result"):
        driver.runner.result(step)
    driver.runner.sample(step, None)
    with pytest.raises(RuntimeError, match="sample a step once"):
        driver.runner.sample(step, None)
    assert driver.runner.result(step).counts.tolist() == [1]


def test_an_error_of_the_model_comes_out_of_that_result_only(driver):
    fine = driver.enqueue((0, PROMPT, 5))
    broken = driver.enqueue((1, [256], 1))
    after = driver.enqueue((0, [RELAYED], 6))
    assert driver.runner.result(fine).counts.tolist() == [1]
    with pytest.raises(IndexError):
        driver.runner.result(broken)
    assert driver.runner.result(after).counts.tolist() == [1]


def test_a_batch_that_contradicts_itself_is_refused(driver):
    batch = driver.batch((0, PROMPT, 5))
    batch.query_lens[0] = 4
    with pytest.raises(ValueError, match="sum to 4, but 5 input ids"):
        driver.runner.forward(batch)


def test_a_row_with_nan_fails_alone_and_so_does_its_middle_chunk(driver):
    parts = [(0, [1], 6), (1, [2, 3], 7), (2, [4], 6), (3, [5, 6], 7)]
    samples = [True, False, True, True]
    for row in range(4):
        driver.run((row, PROMPT, 5))
    clean = driver.run(*parts, samples=samples)
    for row in (1, 2):
        driver.spoil(torch.from_numpy(driver.table[row, 2:3]).long())
    result = driver.run(*parts, samples=samples)
    assert result.row_errors == {1: NOT_FINITE, 2: NOT_FINITE}
    assert result.counts.tolist() == [1, 0, 0, 1]
    assert result.token_ids.tolist() == [clean.token_ids[0], clean.token_ids[2]]


def test_a_failed_row_relays_a_token_that_the_model_knows(driver):
    driver.run((0, PROMPT, 5))
    driver.spoil(torch.from_numpy(driver.table[0, :1]).long())
    failed, dropped = driver.enqueue((0, [1], 6)), driver.enqueue((0, [RELAYED], 7))
    assert driver.runner.result(failed).row_errors == {0: NOT_FINITE}
    assert driver.runner.result(dropped).row_errors == {0: NOT_FINITE}


def test_a_row_that_may_produce_nothing_fails_alone(driver):
    masks = TokenMasks(np.array([0, 1], np.int32), np.stack([token_mask(), token_mask(17)]))
    result = driver.run((0, PROMPT, 5), (1, PROMPT, 5), (2, PROMPT, 5), masks=masks)
    assert result.row_errors == {0: NOTHING_ALLOWED}
    assert result.counts.tolist() == [0, 1, 1]
    assert result.token_ids[0] == 17


def test_suppressing_the_only_allowed_token_leaves_nothing(driver):
    masks = TokenMasks(np.array([1], np.int32), token_mask(17)[None])
    result = driver.run(
        (0, PROMPT, 5),
        (1, PROMPT, 5),
        params=SamplingParams(temperature=1.0),
        suppressed=((1, np.array([17], np.int32)),),
        masks=masks,
    )
    assert result.row_errors == {1: NOTHING_ALLOWED}


def test_masks_of_rows_that_do_not_sample_are_passed_over(driver):
    masks = TokenMasks(np.array([0, 1], np.int32), np.stack([token_mask(1), token_mask(2)]))
    result = driver.run((0, PROMPT, 5), (1, PROMPT, 5), samples=[False, True], masks=masks)
    assert result.token_ids.tolist() == [2]


def test_sampling_may_come_later_than_the_forward(driver):
    step = driver.runner.forward(driver.batch((0, PROMPT, 5)))
    other = driver.enqueue((1, PROMPT, 5))
    masks = TokenMasks(np.array([0], np.int32), token_mask(3)[None])
    driver.runner.sample(step, masks)
    assert driver.runner.result(step).token_ids.tolist() == [3]
    assert driver.runner.result(other).counts.tolist() == [1]


def test_a_pending_history_counts_the_relayed_token(driver):
    biased = SamplingParams(temperature=0.0, logit_bias={40: 100.0, 41: 75.0})
    params = SamplingParams(
        temperature=0.0, logit_bias={40: 100.0, 41: 75.0}, repetition_penalty=2.0
    )
    for pending, expected in ((False, 40), (True, 41)):
        first = driver.enqueue((0, PROMPT, 5), params=biased)
        seen = TokenHistory(0, np.array(PROMPT, np.int32), np.empty(0, np.int32), pending)
        second = driver.enqueue((0, [RELAYED], 6), params=params, histories=(seen,))
        assert driver.runner.result(first).token_ids.tolist() == [40]
        assert driver.runner.result(second).token_ids.tolist() == [expected]


def test_close_ends_the_worker_thread(drive, tiny_model):
    driver = drive(tiny_model, overlap=True)
    step = driver.enqueue((0, PROMPT, 5))
    assert any(t.name.startswith("phloem-model") for t in threading.enumerate())
    driver.runner.close()
    assert not any(t.name.startswith("phloem-model") for t in threading.enumerate())
    assert driver.runner.result(step).counts.tolist() == [1]
    with pytest.raises(RuntimeError):
        driver.runner.forward(driver.batch((0, PROMPT, 5)))


def test_logprobs_come_for_the_rows_that_asked(driver):
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, top_logprobs=0),
        SamplingParams(temperature=0.0, top_logprobs=2),
    ]
    result = driver.run((0, PROMPT, 5), (1, PROMPT, 5), (2, PROMPT, 5), params=params)
    assert np.isnan(result.logprobs.chosen).tolist() == [True, False, False]
    assert result.logprobs.chosen[1] == result.logprobs.chosen[2]
    assert result.logprobs.top[:2] == (None, None)
    top = result.logprobs.top[2]
    assert len(top.token_ids) == 2
    assert top.token_ids[0] == result.token_ids[2]
    assert top.logprobs[0] == result.logprobs.chosen[2]
    assert driver.run((0, PROMPT, 5)).logprobs is None
