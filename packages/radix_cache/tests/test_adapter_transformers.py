"""The adapter for transformers, over tiny random models that are made on the spot."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from phloem.radix_cache import Key  # noqa: E402
from phloem.radix_cache.adapters.transformers_cache import (  # noqa: E402
    CACHE_ARGUMENT,
    LayerValues,
    PrefixCache,
)

VOCAB = 64
END = 0


def random_model(config_class=transformers.LlamaConfig, **options):
    torch.manual_seed(3)
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=END,
        # Wide enough that the likeliest token is no tie that rounding could turn.
        **{"initializer_range": 0.3, **options},
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """For matrices as small as these a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model():
    return random_model()


def prompt(*tokens):
    return torch.tensor([tokens])


def words(start, n):
    """`n` tokens that are no end token, other ones for each `start`."""
    return [1 + (start * 7 + i * 5) % (VOCAB - 1) for i in range(n)]


def computed_tokens(model, monkeypatch):
    """A list that gets the number of input tokens of each forward pass from now on."""
    counts = []
    forward = model.forward

    def counting(*args, **kwargs):
        counts.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counting)
    return counts


texts = st.builds(
    lambda shared, rest: words(0, shared) + rest,
    st.integers(0, 40),
    st.lists(st.integers(1, 3), min_size=1, max_size=20),
)
calls = st.lists(
    st.tuples(texts, st.sampled_from([(), ("a",)]), st.booleans()), min_size=1, max_size=6
)


@settings(max_examples=25)
@given(calls, st.sampled_from([1, 4, 16]), st.sampled_from([16, 64, 1000]))
def test_the_output_is_that_of_the_model_alone(model, calls, page_size, max_tokens):
    cached = PrefixCache(model, max_tokens=max_tokens, page_size=page_size)
    for seed, (tokens, namespace, sampled) in enumerate(calls):
        options = {"max_new_tokens": 6, "do_sample": sampled, "top_k": 0, "pad_token_id": END}
        options |= {"return_dict_in_generate": True, "output_logits": True}
        torch.manual_seed(seed)
        alone = model.generate(prompt(*tokens), **options)
        torch.manual_seed(seed)
        reused = cached.generate(prompt(*tokens), namespace=namespace, **options)
        assert reused.sequences.tolist() == alone.sequences.tolist()
        for ours, theirs in zip(reused.logits, alone.logits):
            torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)
        cached.tree.check_integrity()
        assert cached.tree.sizes.total <= max_tokens
        assert cached.tree.sizes.protected == 0


def test_a_shared_prefix_is_not_computed_again(model, monkeypatch):
    cached = PrefixCache(model, max_tokens=1000, page_size=4)
    system = words(0, 32)
    counts = computed_tokens(model, monkeypatch)
    cached.generate(prompt(*system, 1, 2, 3), max_new_tokens=1)
    cached.generate(prompt(*system, 4, 5), max_new_tokens=1)
    assert counts == [35, 2]
    assert cached.tree.stats.hit_tokens == 32


def test_the_next_turn_finds_the_output_of_the_last(model, monkeypatch):
    cached = PrefixCache(model, max_tokens=1000, page_size=1)
    first = cached.generate(prompt(*words(1, 20)), max_new_tokens=5)
    counts = computed_tokens(model, monkeypatch)
    turn = torch.cat([first, prompt(9, 9, 9)], dim=1)
    cached.generate(turn, max_new_tokens=1)
    # All but the last token of the output went through the model.
    assert counts == [1 + 3]


def test_the_last_token_of_a_known_prompt_is_computed(model, monkeypatch):
    cached = PrefixCache(model, max_tokens=1000, page_size=1)
    known = prompt(*words(2, 20))
    cached.generate(known, max_new_tokens=3)
    counts = computed_tokens(model, monkeypatch)
    cached.generate(known, max_new_tokens=1)
    assert counts == [1]


def test_a_prompt_finds_its_own_namespace_and_no_other(model, monkeypatch):
    cached = PrefixCache(model, max_tokens=1000, page_size=1)
    cached.generate(prompt(*words(1, 20)), namespace=("a",), max_new_tokens=1)
    counts = computed_tokens(model, monkeypatch)
    for namespace in (("b",), (), ("a",)):
        cached.generate(prompt(*words(1, 20)), namespace=namespace, max_new_tokens=1)
    assert counts == [20, 20, 1]


def test_what_was_used_last_is_kept_when_there_is_no_room(model):
    cached = PrefixCache(model, max_tokens=48, page_size=8)
    for start in (1, 2, 1, 3):
        cached.generate(prompt(*words(start, 24)), max_new_tokens=1)
        assert cached.tree.sizes.total <= 48
    kept = [cached.load(prompt(*words(start, 24), 1)).get_seq_length() for start in (1, 2, 3)]
    assert kept == [24, 0, 24]


def test_clear_forgets(model):
    cached = PrefixCache(model, max_tokens=100, page_size=8)
    cached.generate(prompt(*words(1, 24)), max_new_tokens=1)
    cached.clear()
    assert cached.tree.sizes.total == 0
    assert cached.load(prompt(*words(1, 24))).get_seq_length() == 0


def test_a_forward_loop_of_ones_own_uses_load_and_store(model):
    cached = PrefixCache(model, max_tokens=100, page_size=4)
    cached.generate(prompt(*words(1, 16), 1), max_new_tokens=1)
    ids = prompt(*words(1, 16), 2, 3)
    cache = cached.load(ids)
    assert cache.get_seq_length() == 16
    with torch.no_grad():
        logits = model(ids[:, 16:], **{CACHE_ARGUMENT: cache}).logits
        alone = model(ids).logits
    torch.testing.assert_close(logits, alone[:, 16:], atol=1e-3, rtol=1e-4)
    cached.store(ids, cache)
    assert cached.tree.sizes.total == 16  # Two tokens more make no page.


def test_what_load_gives_is_the_callers_to_change(model):
    cached = PrefixCache(model, max_tokens=100, page_size=4)
    ids = prompt(*words(1, 16), 1)
    cached.generate(ids, max_new_tokens=1)
    before = cached.load(ids).layers[0].keys.clone()
    cached.load(ids).layers[0].keys.zero_()
    assert torch.equal(cached.load(ids).layers[0].keys, before)


def test_a_models_own_defaults_are_followed(model):
    cached = PrefixCache(model, max_tokens=100, page_size=4)
    config = transformers.GenerationConfig(max_new_tokens=4, do_sample=False)
    ids = prompt(*words(4, 20))
    alone = model.generate(ids, generation_config=config)
    for _ in range(2):
        assert torch.equal(cached.generate(ids, generation_config=config), alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"num_return_sequences": 3, "do_sample": True}, "num_return_sequences=3"),
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"prefill_chunk_size": 8}, "prefill_chunk_size=8"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"generation_config": transformers.GenerationConfig(num_beams=2)}, "num_beams=2"),
        ({"past_key_values": transformers.DynamicCache()}, "past_key_values cannot be given"),
        ({"cache": transformers.DynamicCache()}, "cache cannot be given"),
        ({"attention_mask": torch.tensor([[0, 1, 1]])}, "attention_mask hides tokens"),
        ({"position_ids": torch.tensor([[5, 6, 7]])}, "position_ids is a tensor"),
        ({"pad_token_id": 2}, "holds the pad token 2"),
    ],
)
def test_what_could_change_the_output_is_refused(model, options, message):
    cached = PrefixCache(model, max_tokens=100)
    with pytest.raises(ValueError, match=message):
        cached.generate(prompt(1, 2, 3), **options)
    assert cached.tree.stats.lookups == 0


def test_the_pad_token_may_be_in_a_prompt_whose_mask_says_so(model):
    cached = PrefixCache(model, max_tokens=100, page_size=1)
    options = {"pad_token_id": 2, "max_new_tokens": 2, "attention_mask": torch.ones(1, 3)}
    out = cached.generate(prompt(1, 2, 3), **options)
    assert torch.equal(out, model.generate(prompt(1, 2, 3), **options))


@pytest.mark.parametrize("shape", [(2, 3), (3,), (1, 0)])
def test_anything_but_one_prompt_is_refused(model, shape):
    cached = PrefixCache(model, max_tokens=100)
    with pytest.raises(ValueError, match="pass one prompt at a time"):
        cached.generate(torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: random_model(transformers.MistralConfig, sliding_window=8),
            "DynamicSlidingWindowLayer",
        ),
        (
            lambda: random_model(
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
            ),
            "rotary scaling 'dynamic'",
        ),
        (
            lambda: transformers.T5ForConditionalGeneration(
                transformers.T5Config(
                    vocab_size=8, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2
                )
            ),
            "has an encoder",
        ),
    ],
)
def test_a_model_whose_prefixes_are_not_reusable_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        PrefixCache(make(), max_tokens=100)


def test_a_cache_that_holds_other_tokens_is_not_stored(model):
    cached = PrefixCache(model, max_tokens=100, page_size=1)
    cache = cached.load(prompt(1, 2))
    with pytest.raises(ValueError, match="holds 0 tokens of a sequence of 2"):
        cached.store(prompt(1, 2), cache)
    model(prompt(1, 2, 3), **{CACHE_ARGUMENT: cache})
    with pytest.raises(ValueError, match="holds 3 tokens of a sequence of 2"):
        cached.store(prompt(1, 2), cache)


def test_what_was_computed_with_gradients_is_kept_without_them(model):
    cached = PrefixCache(model, max_tokens=100, page_size=1)
    cache = cached.load(prompt(1, 2, 3))
    model(prompt(1, 2, 3), **{CACHE_ARGUMENT: cache})
    assert cache.layers[0].keys.requires_grad
    cached.store(prompt(1, 2, 3), cache)
    cached.tree.match(Key([1]))
    assert not any(part.requires_grad for kept in cached.tree.iter_values() for part in kept)
    assert not cached.load(prompt(1, 2, 3, 4)).layers[0].keys.requires_grad


def test_room_for_less_than_a_page_is_refused(model):
    with pytest.raises(ValueError, match="max_tokens 8 is less than page_size 16"):
        PrefixCache(model, max_tokens=8)


def test_values_are_cut_and_joined_by_token():
    values = LayerValues(2)
    whole = tuple(torch.arange(24.0).reshape(1, 2, 4, 3) + i for i in range(2))
    parts = [values.cut(whole, 0, 1), values.cut(whole, 1, 4)]
    assert [values.length(part) for part in parts] == [1, 3]
    for joined, part in zip(values.join(parts), whole):
        assert torch.equal(joined, part)
    assert parts[0][0].untyped_storage().nbytes() == 2 * 3 * 4
    assert values.length(values.join([])) == 0
