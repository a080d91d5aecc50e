"""Prompts pooled to one vector: as transformers has it, and the same bits however it is run."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from phloem.kernels import available_backends, get_ops
from phloem.kernels.torch_backend import TorchOps
from phloem.model_runner import load_model
from phloem.model_runner.pooling import STATES_AT_ONCE, Pooler
from phloem.model_runner.sampler import NOT_FINITE
from phloem.scheduler import PoolingRequest

CPU = next(b for b in available_backends() if b.name == "cpu")
LONG = 180
MODES = ["mean", "last"]


def prompt(length=LONG, seed=3):
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def pooled(driver, ids, mode, cuts=(), row=0, others=()):
    """The vector of a prompt that is computed in pieces, each beside `others` (row, ids, end)."""
    for start, end in itertools.pairwise([0, *cuts, len(ids)]):
        complete = end == len(ids)
        asked = (PoolingRequest(len(others), mode, complete),) if complete or mode == "mean" else ()
        parts = [*others, (row, ids[start:end], end)]
        batch = driver.batch(*parts, samples=[True] * len(others) + [False], pooling=asked)
        step = driver.runner.forward(batch)
        driver.runner.sample(step, None)
        result = driver.runner.result(step)
        assert set(result.embeddings) == ({len(others)} if complete else set())
    assert not result.row_errors
    return result.embeddings[len(others)]


def reference_states(saved, ids):
    with torch.inference_mode():
        output = saved.reference(torch.tensor([ids]), output_hidden_states=True)
    return output.hidden_states[-1][0].numpy()


@pytest.fixture(scope="module")
def with_norms(save_tiny):
    """A model whose norms are not all ones, as trained ones are not."""
    saved = save_tiny()
    for name, weight in saved.reference.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.2, 3.0)
    saved.reference.save_pretrained(saved.folder)
    return saved


@pytest.mark.parametrize("overlap", [False, True], ids=["inline", "overlap"])
def test_pooled_states_are_those_of_transformers(with_norms, drive, overlap):
    driver = drive(load_model(with_norms.folder, dtype="float32"), overlap=overlap)
    ids = prompt()
    states = reference_states(with_norms, ids)
    for mode, expected in (("mean", states.mean(axis=0)), ("last", states[-1])):
        found = pooled(driver, ids, mode)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


class UnroundedOps(TorchOps):
    """Keeps every weight in floats, whatever form is asked for."""

    def prepare_linear(self, weight, bias=None, form="float", input_bits=8):
        return super().prepare_linear(weight, bias)

    def prepare_embedding(self, weight, form="float"):
        return super().prepare_embedding(weight)


def test_a_rotated_model_gives_states_in_the_coordinates_of_the_model(with_norms, drive):
    model = load_model(with_norms.folder, ops=UnroundedOps(), quantization="int8")
    ids = prompt(40)
    states = reference_states(with_norms, ids)
    for mode, expected in (("mean", states.mean(axis=0)), ("last", states[-1])):
        found = pooled(drive(model), ids, mode)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.skipif(not CPU.usable, reason=CPU.reason)
@pytest.mark.parametrize("form", ["none", "int8"])
def test_a_vector_is_the_same_bits_alone_in_a_batch_in_chunks_and_warm(save_tiny, drive, form):
    folder = save_tiny().folder
    ids, other = prompt(), prompt(70, seed=4)

    def driver(threads=1, seed=0):
        ops = get_ops("cpu", threads=threads)
        return drive(load_model(folder, ops=ops, quantization=form), seed=seed)

    one, two = driver(), driver(threads=2, seed=1)
    for mode in MODES:
        alone = pooled(one, ids, mode).tobytes()
        assert pooled(two, ids, mode, cuts=(13, 64, 65, 179)).tobytes() == alone
        beside = [(1, other, len(other)), (2, other[:5], 5)]
        assert pooled(two, ids, mode, row=3, others=beside).tobytes() == alone
    # The KV of all but the last token is there: only that one is computed.
    step = two.runner.forward(
        two.batch((3, ids[-1:], LONG), samples=[False], pooling=(PoolingRequest(0, "last", True),))
    )
    assert two.runner.result(step).embeddings[0].tobytes() == pooled(one, ids, "last").tobytes()


def test_a_mean_over_more_states_than_are_summed_at_once_is_the_same_in_chunks(
    save_tiny, drive, monkeypatch
):
    monkeypatch.setattr("phloem.model_runner.pooling.STATES_AT_ONCE", 7)
    assert STATES_AT_ONCE > LONG
    saved = save_tiny()
    driver = drive(load_model(saved.folder, dtype="float32"))
    expected = reference_states(saved, prompt()).mean(axis=0)
    for cuts in ((), (7, 20)):
        found = pooled(driver, prompt(), "mean", cuts=cuts)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_a_prompt_left_that_never_ended_is_not_in_the_next_of_its_row(tiny_model, drive):
    driver, ids = drive(tiny_model), prompt(30)
    expected = pooled(drive(tiny_model), ids, "mean")
    begun = driver.batch(
        (0, prompt(9, seed=9), 9), samples=[False], pooling=(PoolingRequest(0, "mean", False),)
    )
    driver.runner.result(driver.runner.forward(begun))
    assert np.array_equal(pooled(driver, ids, "mean"), expected)


def test_a_chunk_whose_first_never_came_leaves_others_alone(tiny_model, drive):
    """The step of the first failed while this one was in flight."""
    driver = drive(tiny_model)
    expected = driver.run((1, prompt(6), 6)).token_ids.tolist()
    ids, asked = prompt(8), (PoolingRequest(0, "mean", True),)
    driver.run((0, ids[:5], 5))
    batch = driver.batch((0, ids[5:], 8), (2, prompt(6), 6), samples=[False, True], pooling=asked)
    step = driver.runner.forward(batch)
    driver.runner.sample(step, None)
    result = driver.runner.result(step)
    assert result.token_ids.tolist() == expected
    assert not result.embeddings


def test_a_vector_with_nan_fails_its_row_alone(tiny_model, drive):
    driver = drive(tiny_model)
    ids = prompt(6)
    for row in (0, 1):
        driver.run((row, ids[:5], 5))
    driver.spoil(torch.from_numpy(driver.table[0, 2:3]).long())
    asked = tuple(PoolingRequest(i, "last", True) for i in range(2))
    batch = driver.batch((0, ids[5:], 6), (1, ids[5:], 6), samples=[False] * 2, pooling=asked)
    result = driver.runner.result(driver.runner.forward(batch))
    assert result.row_errors == {0: NOT_FINITE}
    assert np.isfinite(result.embeddings[1]).all()


def test_a_mean_is_summed_in_the_order_of_positions_however_it_is_cut():
    """States that cancel out: what is left of them is rounding, which depends on the order."""
    identity = SimpleNamespace(final_states=lambda states: states)
    rng = np.random.default_rng(1)
    half = rng.standard_normal((LONG // 2, 64)) * 2.0 ** rng.integers(0, 40, (LONG // 2, 64))
    half = half.astype(np.float32)
    states = torch.from_numpy(np.concatenate((half, -rng.permutation(half))))

    def mean(cuts):
        pooler = Pooler(identity)
        for start, end in itertools.pairwise([0, *cuts, LONG]):
            lengths = np.array([end - start], np.int32), np.array([end], np.int32)
            asked = [PoolingRequest(0, "mean", end == LONG)]
            rows, starts = np.array([2], np.int32), np.array([0])
            found = pooler.pool(states[start:end], starts, rows, lengths, asked)
        return found[0]

    whole = mean(())
    assert whole.any()
    for cuts in ((1,), (90,), (13, 64, 65, 179)):
        assert np.array_equal(mean(cuts), whole)
