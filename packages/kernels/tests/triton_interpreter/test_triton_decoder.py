"""A model put together from the table: the views that its layers pass on fit the kernels."""

import numpy as np
import torch

from phloem.kernels import (
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    KVTensors,
    RopeConfig,
    get_ops,
    inverse_frequencies,
)
from phloem.kernels.triton_backend.ops import TritonOps

HIDDEN, FEED_FORWARD, VOCAB = 96, 64, 50
ATTENTION = AttentionSpec(6, 2, 16, torch.float32, torch.device("cpu"))


class Cache:
    def __init__(self):
        self.layers = [KVTensors(*torch.zeros(2, 64, 2, 16)) for _ in range(2)]

    def layer(self, index):
        return self.layers[index]


def build(ops):
    generator = torch.Generator().manual_seed(0)

    def weights(*shape):
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    def layer():
        return DecoderLayer(
            input_norm=1 + weights(HIDDEN),
            qkv=ops.prepare_linear(weights(160, HIDDEN)),
            output=ops.prepare_linear(weights(HIDDEN, 96)),
            mlp_norm=1 + weights(HIDDEN),
            gate_up=ops.prepare_linear(weights(2 * FEED_FORWARD, HIDDEN)),
            down=ops.prepare_linear(weights(HIDDEN, FEED_FORWARD)),
        )

    return ops.decoder(
        DecoderSpec(
            attention=ATTENTION,
            embedding=ops.prepare_embedding(weights(VOCAB, HIDDEN)),
            layers=(layer(), layer()),
            norm=1 + weights(HIDDEN),
            head=ops.prepare_linear(weights(VOCAB, HIDDEN)),
            rms_norm_eps=1e-5,
            frequencies=inverse_frequencies(RopeConfig(), 16),
        )
    )


def steps(ops):
    """A prompt of 9 and one of 4, then a token for each: the logits of both steps."""
    decoder, cache = build(ops), Cache()
    table = np.stack([np.arange(1, 21), np.arange(21, 41)]).astype(np.int32)
    rows, lengths = np.array([1, 0], np.int32), np.array([9, 4], np.int32)
    for queries in (lengths, np.ones(2, np.int32)):
        lengths = lengths if queries is lengths else lengths + 1
        firsts = lengths - queries
        positions = np.concatenate([np.arange(a, b) for a, b in zip(firsts, lengths)])
        slots = np.concatenate([table[r, a:b] for r, a, b in zip(rows, firsts, lengths)])
        hidden = decoder.forward(
            torch.from_numpy(positions * 7 % VOCAB),
            torch.from_numpy(positions),
            torch.from_numpy(slots.astype(np.int64)),
            ops.plan_attention(table, rows, queries, lengths, ATTENTION),
            cache,
        )
        yield decoder.logits(hidden)
        yield decoder.greedy(hidden).ids


def test_a_decoder_of_triton_ops_gives_the_references_logits_and_tokens():
    for found, expected in zip(steps(TritonOps()), steps(get_ops("torch")), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
