"""What the native decoder does beside its layers: the largest logit, of those that masks allow."""

import numpy as np
import pytest
import torch

from phloem.kernels import AttentionSpec, DecoderLayer, DecoderSpec
from phloem.kernels.cpu_backend.decoder import CpuDecoder
from phloem.kernels.cpu_backend.library import library_status
from phloem.kernels.cpu_backend.ops import CpuOps

STATUS = library_status()
pytestmark = pytest.mark.skipif(not STATUS.usable, reason=STATUS.reason)
HIDDEN, ROWS = 64, 7


@pytest.fixture(scope="module")
def ops():
    return CpuOps(threads=2)


def decoder_with_head(ops, weight, form):
    """A decoder whose one layer is never run, and whose head has this weight `[n, HIDDEN]`."""
    linear = ops.prepare_linear(torch.zeros(HIDDEN, HIDDEN))
    ones = torch.ones(HIDDEN)
    return ops.decoder(
        DecoderSpec(
            attention=AttentionSpec(1, 1, HIDDEN, torch.float32, torch.device("cpu")),
            embedding=ops.prepare_embedding(torch.zeros(1, HIDDEN)),
            layers=(DecoderLayer(ones, linear, linear, ones, linear, linear),),
            norm=ones,
            head=ops.prepare_linear(weight, torch.linspace(0, 0.1, len(weight)), form),
            rms_norm_eps=1e-5,
            frequencies=torch.ones(HIDDEN // 2),
        )
    )


@pytest.fixture(params=[5, 6001, 20000])
def size(request):
    return request.param


@pytest.fixture(params=["float", "int8", "int4"])
def decoder(ops, size, request):
    torch.manual_seed(size)
    weight = torch.randn(size, HIDDEN)
    weight[-1] = weight[0]
    made = decoder_with_head(ops, weight, request.param)
    assert isinstance(made, CpuDecoder)
    return made


@pytest.fixture
def hidden():
    hidden = torch.randn(ROWS, HIDDEN)
    hidden[3, 5] = float("nan")
    return hidden


def as_bits(allowed):
    """Masks `[n, words]` of booleans `[n, size]`; bits behind the vocabulary are set."""
    padded = np.ones((len(allowed), -(-allowed.shape[1] // 32) * 32), bool)
    padded[:, : allowed.shape[1]] = allowed
    return np.packbits(padded, axis=1, bitorder="little").view("<i4")


def test_the_greedy_token_is_that_of_the_logits(decoder, hidden):
    logits = decoder.logits(hidden)
    found = decoder.greedy(hidden)
    assert found.finite.tolist() == logits.isfinite().all(-1).tolist()
    assert found.finite.sum() == ROWS - 1
    assert torch.equal(found.ids[found.finite], logits.argmax(-1)[found.finite])
    assert found.allowed[found.finite].all()


def test_the_greedy_token_under_masks_is_the_largest_of_those_allowed(decoder, hidden, size):
    allowed = np.random.default_rng(size).random((ROWS, size)) < 0.3
    allowed[0] = True
    allowed[1] = False
    allowed[2] = np.arange(size) == size - 1
    allowed[3, 0] = True
    logits = decoder.logits(hidden)
    logits[~torch.from_numpy(allowed)] = float("-inf")
    found = decoder.greedy(hidden, as_bits(allowed))
    assert found.finite.tolist() == [row != 3 for row in range(ROWS)]
    some = torch.from_numpy(allowed.any(1)) & found.finite
    assert torch.equal(found.allowed[found.finite], some[found.finite])
    assert torch.equal(found.ids[some], logits.argmax(-1)[some])
    assert found.ids[2] == size - 1


def test_of_equal_logits_the_lower_id_is_taken(ops):
    weight = torch.zeros(9000, HIDDEN)
    decoder = decoder_with_head(ops, weight, "int8")
    decoder._spec.head.bias[:] = 0.0
    assert decoder.greedy(torch.ones(1, HIDDEN)).ids.tolist() == [0]
    allowed = np.arange(9000)[None] >= 8111
    assert decoder.greedy(torch.ones(1, HIDDEN), as_bits(allowed)).ids.tolist() == [8111]


def test_masks_of_another_shape_are_refused(decoder, hidden, size):
    words = -(-size // 32)
    with pytest.raises(ValueError, match=f"7 rows and a vocabulary of {size} need"):
        decoder.greedy(hidden, np.zeros((ROWS, words + 1), np.int32))
