"""Greedy steps go a shorter way: what comes of them is what comes of the general one."""

import gc
import weakref

import numpy as np
import pytest
import torch

from phloem.kernels import available_backends, get_ops
from phloem.model_runner import load_model
from phloem.model_runner.sampler import NOT_FINITE, NOTHING_ALLOWED
from phloem.scheduler import RELAYED, SamplingParams, TokenHistory, TokenMasks
from phloem.scheduler.ports import PoolingRequest, PromptLogprobRequest

STATUS = next(b for b in available_backends() if b.name == "cpu")
pytestmark = pytest.mark.skipif(not STATUS.usable, reason=STATUS.reason)

PROMPTS = [[5, 9, 200, 31, 7], [31, 7], [200] * 70]
ALLOWED = [17, 40]


@pytest.fixture(scope="module", params=["none", "int8", "int4"])
def model(request, tiny):
    return load_model(tiny.folder, ops=get_ops("cpu", threads=2), quantization=request.param)


@pytest.fixture(params=[torch.float32, torch.int8], ids=["fp32", "int8"])
def drivers(request, drive, model):
    """Two in the same state: one goes the short way where it can, the other never does."""
    short, general = (drive(model, kv_dtype=request.param) for _ in range(2))
    general.runner._greedy_path = None
    for driver in (short, general):
        for row, ids in enumerate(PROMPTS):
            driver.run((row, ids, len(ids)))
    return short, general


@pytest.fixture
def driver(drivers):
    return drivers[0]


def decodes(*tokens, step=0):
    """The next token of each row."""
    return [(i, [t], len(PROMPTS[i]) + 1 + step) for i, t in enumerate(tokens)]


def kv_bytes(driver):
    slots = torch.from_numpy(driver.table[:, :80].reshape(-1)).long()
    return [driver.pool.read(slots, layer) for layer in range(driver.pool.num_layers)]


def takes_it(driver, *parts, **settings):
    """Whether the short way takes such a step."""
    return driver.runner._greedy_path.forward(driver.batch(*parts, **settings)) is not None


def masks_for(*rows, allowed=ALLOWED):
    bits = np.zeros(256, np.uint8)
    bits[list(allowed)] = 1
    words = np.packbits(bits, bitorder="little").view("<i4")
    return TokenMasks(np.array(rows, np.int32), np.tile(words, (len(rows), 1)))


def test_tokens_and_kv_are_the_same_bits_on_both_ways(drivers):
    short, general = drivers
    tokens = [1, 2, 3]
    for step in range(70):  # over the end of a block of attention
        parts = decodes(*tokens, step=step)
        assert takes_it(short, *parts)
        found, expected = short.run(*parts), general.run(*parts)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.counts.tolist() == expected.counts.tolist() == [1, 1, 1]
        assert found.token_ids.dtype == found.counts.dtype == np.int32
        tokens = found.token_ids.tolist()
    for ours, theirs in zip(kv_bytes(short), kv_bytes(general), strict=True):
        assert torch.equal(ours, theirs)


def test_prompts_chunks_and_decodes_together_are_the_same_bits(drivers):
    short, general = drivers
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 256, 100).tolist()
    for parts in (
        [(3, ids, 100)],
        [(4, ids[:60], 60), (0, [1], 6), (1, [2, 3, 4], 5)],
        [(4, ids[60:], 100), (3, [9], 101), (0, [7], 7)],
        [(5, ids[:1], 1)],
    ):
        assert takes_it(short, *parts)
        found, expected = short.run(*parts), general.run(*parts)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.counts.tolist() == [1] * len(parts)
    for ours, theirs in zip(kv_bytes(short), kv_bytes(general), strict=True):
        assert torch.equal(ours, theirs)


def test_any_rows_in_any_order_and_number(drivers):
    short, general = drivers
    parts = decodes(1, 2, 3)
    for some in ([parts[2]], parts[::-1], parts, parts[:1]):
        assert short.run(*some).token_ids.tolist() == general.run(*some).token_ids.tolist()


@pytest.mark.parametrize("rows", [(0, 1, 2), (1,), (0, 2)])
def test_masks_hold_for_the_rows_that_have_one(drivers, rows):
    found, expected = (d.run(*decodes(1, 2, 3), masks=masks_for(*rows)) for d in drivers)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert all(found.token_ids[row] in ALLOWED for row in rows)


def test_masks_that_may_come_and_do_not_change_nothing(drivers):
    one, other = drivers
    for step in range(3):
        parts = decodes(1, 2, 3, step=step)
        found, expected = one.run(*parts, masked=True), other.run(*parts)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.counts.tolist() == [1, 1, 1]


def test_masks_come_for_no_batch_that_said_none_would(drivers):
    for driver in drivers:
        with pytest.raises(ValueError, match="not masked"):
            driver.enqueue(*decodes(1), masks=masks_for(0), masked=False)
        assert driver.run(*decodes(1)).counts.tolist() == [1]


def test_masks_of_another_width_are_refused_and_the_next_step_runs(driver):
    narrow = TokenMasks(np.array([0], np.int32), np.zeros((1, 2), np.int32))
    step = driver.enqueue(*decodes(1), masks=narrow)
    with pytest.raises(ValueError, match="shape"):
        driver.runner.result(step)
    assert driver.run(*decodes(1)).counts.tolist() == [1]


def test_a_row_that_may_produce_nothing_fails_alone(driver):
    clean = driver.run(*decodes(1, 2, 3)).token_ids.tolist()
    result = driver.run(*decodes(1, 2, 3), masks=masks_for(1, allowed=()))
    assert result.row_errors == {1: NOTHING_ALLOWED}
    assert result.counts.tolist() == [1, 0, 1]
    assert result.token_ids.tolist() == [clean[0], clean[2]]


def test_a_row_with_nan_fails_alone_and_relays_a_token_that_the_model_knows(drive, model):
    driver = drive(model)
    for row, ids in enumerate(PROMPTS):
        driver.run((row, ids, len(ids)))
    clean = driver.run(*decodes(1, 2, 3)).token_ids.tolist()
    driver.spoil(torch.from_numpy(driver.table[1, :1]).long())
    assert takes_it(driver, *decodes(1, 2, 3))
    result = driver.run(*decodes(1, 2, 3))
    assert result.row_errors == {1: NOT_FINITE}
    assert result.token_ids.tolist() == [clean[0], clean[2]]
    relayed = driver.runner._relay.newest(np.arange(3, dtype=np.int32)).tolist()
    assert relayed == [clean[0], 0, clean[2]]


def test_tokens_are_relayed_to_the_general_way(drivers):
    after = []
    for driver in drivers:
        driver.run(*decodes(1, 2, 3))
        after.append(driver.run(*decodes(RELAYED, RELAYED, RELAYED, step=1)).token_ids.tolist())
    assert after[0] == after[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"params": SamplingParams(temperature=0.7)},
        {"params": SamplingParams(temperature=0.0, top_logprobs=1)},
        {"params": [SamplingParams(temperature=0.0), SamplingParams(temperature=0.7)]},
        {"params": SamplingParams(temperature=0.0, logit_bias={3: 90.0})},
        {"suppressed": ((0, np.array([3], np.int32)),)},
        {"histories": (TokenHistory(0, np.array([3]), np.array([4]), False),)},
        {"samples": [True, False]},
        {"pooling": (PoolingRequest(0, "last", True),)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_steps_go_the_general_way(drivers, settings):
    short, general = drivers
    parts = decodes(1, 2)
    assert not takes_it(short, *parts, **settings)
    ours, theirs = short.run(*parts, **settings), general.run(*parts, **settings)
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    assert ours.counts.tolist() == theirs.counts.tolist()


def test_prompts_whose_logprobs_are_asked_for_go_the_general_way(driver):
    ids = [3, 4, 5, 6]
    asked = (PromptLogprobRequest(0, 0, np.array(ids[1:], np.int32), top=2),)
    assert not takes_it(driver, (3, ids, 4), asked=asked)
    result = driver.run((3, ids, 4), asked=asked)
    assert len(result.logprobs.prompt[0].logprobs) == 3


def test_tokens_that_are_not_known_yet_go_the_general_way(driver):
    assert not takes_it(driver, *decodes(1, RELAYED))
    assert takes_it(driver, *decodes(1, 2))


@pytest.mark.parametrize(
    ("field", "value"),
    [("query_lens", 2), ("seq_lens", 0), ("seq_lens", 257), ("rows", 6), ("rows", -1)],
)
def test_a_batch_that_contradicts_itself_is_refused_as_ever(driver, field, value):
    batch = driver.batch(*decodes(1, 2))
    getattr(batch, field)[1] = value
    with pytest.raises((ValueError, IndexError)):
        driver.runner.forward(batch)
    assert driver.run(*decodes(1, 2)).counts.tolist() == [1, 1]


def test_steps_may_be_sampled_later_and_in_any_order(drivers):
    short, general = drivers
    expected = [general.run(part).token_ids.tolist() for part in decodes(1, 2, 3)]
    steps = [short.runner.forward(short.batch(part)) for part in decodes(1, 2, 3)]
    for step in reversed(steps):
        short.runner.sample(step, None)
    assert [short.runner.result(step).token_ids.tolist() for step in steps] == expected


def test_a_result_stays_what_it_was(driver):
    first = driver.run(*decodes(1, 2, 3))
    tokens = first.token_ids.tolist()
    driver.run(*decodes(*tokens, step=1))
    assert first.token_ids.tolist() == tokens


def test_the_row_table_may_change_once_forward_has_returned(drivers):
    short, general = drivers
    expected = general.run(*decodes(1, 2)).token_ids.tolist()
    step = short.runner.forward(short.batch(*decodes(1, 2)))
    short.table[:] = 0
    short.runner.sample(step, None)
    assert short.runner.result(step).token_ids.tolist() == expected


def test_memory_is_kept_from_step_to_step_and_goes_with_a_step_that_is_dropped(driver):
    path = driver.runner._greedy_path
    for step in range(3):
        driver.run(*decodes(1, 2, step=step))
    (kept,) = path._free
    dropped = driver.runner.forward(driver.batch(*decodes(1)))
    assert dropped.forwarded.result() is kept
    assert not path._free
    gone = weakref.ref(kept)
    del dropped, kept
    gc.collect()
    assert gone() is None
    assert driver.run(*decodes(1)).counts.tolist() == [1]


def test_a_layer_that_does_not_come_fails_the_step(driver):
    def late(index):
        raise OSError("the disk is gone")

    path = driver.runner._greedy_path
    pool, path._kv_pool = path._kv_pool, type("Broken", (), {"layer": staticmethod(late)})()
    step = driver.enqueue(*decodes(1))
    with pytest.raises(OSError, match="the disk is gone"):
        driver.runner.result(step)
    path._kv_pool = pool
    assert driver.run(*decodes(1)).counts.tolist() == [1]


def test_a_cache_that_native_code_cannot_read_goes_the_general_way(drive, model):
    driver = drive(model, kv_dtype=torch.float16)
    driver.run((0, PROMPTS[0], 5))
    assert not takes_it(driver, *decodes(1))
    assert driver.run(*decodes(1)).counts.tolist() == [1]
