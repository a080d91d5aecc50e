"""The adapter over a FlashInfer that is made of torch, with the calls of the real one checked."""

import importlib
import importlib.util
import inspect
import types

import numpy as np
import pytest
import torch

from phloem.kernels import AttentionSpec, KVTensors, SamplingParameters, get_ops
from phloem.kernels.flashinfer_backend.ops import FlashInferOps
from phloem.kernels.triton_backend.attention_kernels import SPAN_LENGTH

layers = pytest.importorskip("phloem.mem_pool.kv.layers", reason="phloem-mem-pool is not installed")
reference = get_ops("torch")
CPU = torch.device("cpu")
calls = []


class FakeWrapper:
    """Attends by the reference to the pages it was told of."""

    def __init__(self, workspace, *, kv_layout, **options):
        self.layout = kv_layout

    def attend(self, queries, pages, q, cache):
        calls.append((type(self).__name__, self.layout, pages["page_size"]))
        k, v = (part.transpose(1, 2) if self.layout == "HND" else part for part in cache)
        page = k.shape[1]
        rows = len(pages["last"])
        lengths = np.zeros(rows, np.int32)
        table = np.zeros((rows, 1000), np.int32)
        for row, (start, end) in enumerate(zip(pages["indptr"], pages["indptr"][1:])):
            held = pages["indices"][start:end].numpy()
            lengths[row] = (len(held) - 1) * page + int(pages["last"][row])
            table[row, : len(held) * page] = (held[:, None] * page + np.arange(page)).reshape(-1)
        spec = AttentionSpec(
            q.shape[1], k.shape[2], k.shape[3], q.dtype, CPU, softmax_scale=pages["scale"]
        )
        plan = reference.plan_attention(table, np.arange(rows), queries, lengths, spec)
        return plan.run(q, KVTensors(*(part.reshape(-1, *part.shape[2:]) for part in (k, v))))


class FakeDecode(FakeWrapper):
    def plan(self, indptr, indices, last, heads, kv_heads, dim, *, page_size, sm_scale, **more):
        assert more["fixed_split_size"] == max(SPAN_LENGTH // page_size, 1)
        self.pages = {"indptr": indptr, "indices": indices, "last": last}
        self.pages |= {"page_size": page_size, "scale": sm_scale}

    def run(self, q, cache):
        return self.attend(np.ones(len(q), np.int32), self.pages, q, cache)


class FakePrefill(FakeWrapper):
    def plan(
        self,
        starts,
        indptr,
        indices,
        last,
        heads,
        kv_heads,
        dim,
        *,
        causal,
        page_size,
        sm_scale,
        **more,
    ):
        assert causal
        assert more["fixed_split_size"] == max(SPAN_LENGTH // page_size, 1)
        self.queries = np.diff(starts.numpy()).astype(np.int32)
        self.pages = {"indptr": indptr, "indices": indices, "last": last}
        self.pages |= {"page_size": page_size, "scale": sm_scale}

    def run(self, q, cache):
        return self.attend(self.queries, self.pages, q, cache)


def fake_softmax(logits, temperature):
    return torch.softmax(logits / temperature.unsqueeze(-1), -1)


def fake_top_k(probs, top_k, *, is_deterministic):
    ordered = probs.sort(-1, descending=True).values
    kept = probs * (probs >= ordered.gather(-1, top_k.long().unsqueeze(-1) - 1))
    return kept / kept.sum(-1, keepdim=True)


def fake_top_p(probs, top_p, *, is_deterministic):
    ordered = probs.sort(-1, descending=True).values
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered
    last = (before < top_p.unsqueeze(-1)).sum(-1, keepdim=True) - 1
    kept = probs * (probs >= ordered.gather(-1, last))
    return kept / kept.sum(-1, keepdim=True)


FAKE = {
    "BatchDecodeWithPagedKVCacheWrapper": FakeDecode,
    "BatchPrefillWithPagedKVCacheWrapper": FakePrefill,
    "softmax": fake_softmax,
    "top_k_renorm_probs": fake_top_k,
    "top_p_renorm_probs": fake_top_p,
}


def as_module(parts):
    names = [name for name in parts if not name.startswith("Batch")]
    sampling = types.SimpleNamespace(**{name: parts[name] for name in names})
    wrappers = {name: part for name, part in parts.items() if name not in names}
    return types.SimpleNamespace(sampling=sampling, **wrappers)


def checked(function, real):
    """`function`, after the call was found to fit the signature of `real`."""
    signature = inspect.signature(real)

    def call(*args, **kwargs):
        signature.bind(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def checked_wrapper(fake, real):
    # The decode wrapper's `plan` hands all keywords on.
    plan = real.plan
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(plan).parameters.values()):
        plan = real._plan_impl
    methods = {"__init__": real.__init__, "plan": plan, "run": real.run}
    made = {name: checked(getattr(fake, name), method) for name, method in methods.items()}
    return type(fake.__name__, (fake,), made)


def fake_with_installed_signatures():
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("flashinfer is not installed: its signatures are not here to be checked")
    real = importlib.import_module("flashinfer")
    sampling = importlib.import_module("flashinfer.sampling")
    parts = {}
    for name, part in FAKE.items():
        if name.startswith("Batch"):
            parts[name] = checked_wrapper(part, getattr(real, name))
        else:
            parts[name] = checked(part, getattr(sampling, name))
    return as_module(parts)


@pytest.fixture(params=["fake", "installed signatures"])
def ops(request):
    calls.clear()
    fake = request.param == "fake"
    return FlashInferOps(as_module(FAKE) if fake else fake_with_installed_signatures())


def attend(ops, rows, page=16, layout="token", cache=torch.float16, dtype=torch.float16, ragged=0):
    """What an ops and the reference make of rows of (queries, length)."""
    spec = AttentionSpec(6, 2, 64, dtype, CPU, softmax_scale=0.1)
    queries, lengths = np.array(rows, np.int32).T
    pages = -(-lengths // page) + 1
    table = np.zeros((len(rows), int(pages.max()) * page), np.int32)
    order = np.random.default_rng(0).permutation(np.arange(1, 1 + pages.sum()))
    for row, end, count in zip(table, np.cumsum(pages), pages):
        slots = (order[end - count : end, None] * page + np.arange(page)).reshape(-1)
        row[: len(slots) - ragged] = slots[ragged:]
    place = layers.Place(int(1 + pages.sum()) * page, page, layout, CPU)
    scales = torch.float32 if cache == torch.int8 else None
    kv = layers.KVLayer(*(layers.Part(place, 2, 64, cache, scales) for _ in range(2)))
    every = torch.arange(place.num_slots)
    generator = torch.Generator().manual_seed(0)
    kv.store(every, *torch.randn(2, len(every), 2, 64, generator=generator))
    q = torch.randn(int(queries.sum()), 6, 64, generator=generator).to(dtype)
    index = np.arange(len(rows), dtype=np.int32)
    plans = [o.plan_attention(table, index, queries, lengths, spec) for o in (ops, reference)]
    return [plan.run(q, kv) for plan in plans], lambda: plans[0].run(q, kv)


@pytest.mark.parametrize("layout", ["token", "page"])
@pytest.mark.parametrize("page", [1, 16])
def test_decodes_and_mixed_steps_reach_flashinfer_with_the_right_pages(ops, page, layout):
    flat = "NHD" if layout == "token" or page == 1 else "HND"
    for rows, wrapper in (
        ([(1, 1), (1, 16), (1, 70)], "FakeDecode"),
        ([(1, 33), (8, 8), (5, 40)], "FakePrefill"),
    ):
        calls.clear()
        (found, expected), _ = attend(ops, rows, page, layout)
        torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)
        assert calls == [(wrapper, flat, page)]


def test_a_step_is_planned_once_for_all_layers(ops):
    wrappers = []
    decode = ops._library.BatchDecodeWithPagedKVCacheWrapper
    ops._library.BatchDecodeWithPagedKVCacheWrapper = lambda *a, **k: (
        wrappers.append(1) or decode(*a, **k)
    )
    _, again = attend(ops, [(1, 9)])
    again()
    assert len(calls) == 2
    assert len(wrappers) == 1


@pytest.mark.parametrize(
    "unread",
    [{"cache": torch.int8}, {"cache": torch.float32}, {"dtype": torch.float32}, {"ragged": 3}],
    ids=str,
)
def test_what_flashinfer_does_not_read_goes_to_triton(ops, unread):
    (found, expected), _ = attend(ops, [(1, 33), (8, 8)], **unread)
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)
    assert not calls


FILTERS = [(40, 1.0, 0.0), (-1, 0.8, 0.0), (3, 0.9, 0.1), (-1, 1.0, 0.2), (2, 1.0, 0.0)]


@pytest.mark.parametrize("ties", [False, True])
def test_draws_are_those_of_the_reference_also_among_equals(ops, ties):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (3 * len(FILTERS), 300)).astype(np.float32)
    if ties:
        logits = np.round(logits)
    top_k, top_p, min_p = (np.repeat(np.array(column), 3) for column in zip(*FILTERS))
    p = SamplingParameters(
        np.full(len(logits), 0.9, np.float32),
        top_k.astype(np.int32),
        top_p.astype(np.float32),
        min_p.astype(np.float32),
        rng.random(len(logits)),
    )
    found = ops.sample(torch.from_numpy(logits), p)
    assert found.tolist() == reference.sample(torch.from_numpy(logits), p).tolist()
