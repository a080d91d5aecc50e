"""Prefix reuse across calls of Hugging Face `generate`: what was computed before is not again.

Owns a `RadixCache` whose values are the keys and values of attention themselves, cut by token, and
the rules of when reuse cannot change the output. Generation is left to the model. Needs torch and
transformers, which nothing else in this package does.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import torch
from transformers import DynamicCache, GenerationMixin
from transformers.cache_utils import DynamicLayer

from ..key import Key, Namespace
from ..policy import EvictionPolicy
from ..tree import RadixCache

LayerTensors = tuple[torch.Tensor, ...]
"""K and V of each layer in turn, each [1, num_kv_heads, num_tokens, head_dim]."""

CACHE_ARGUMENT: Final = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)
"""What models and `generate` call the argument that takes a cache: transformers 5 renamed it, and
before that a model ignores the new name without a word."""

_TOKENS: Final = -2

# Options of `generate` that need more than one row, another cache, or a cache that is cut back; and
# chunked prefill, which in transformers 4 starts at the first token whatever the cache holds.
_REFUSED_OPTIONS: Final = {
    "num_beams": (None, 1),
    "num_return_sequences": (None, 1),
    "use_cache": (None, True),
    "cache_implementation": (None, "dynamic"),
    "prefill_chunk_size": (None,),
    "token_healing": (None, False),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "dola_layers": (None,),
    "penalty_alpha": (None, 0),
    "constraints": (None,),
    "force_words_ids": (None,),
    "use_mtp": (None, False),
}
_REFUSED_ARGUMENTS: Final = (
    "cache",
    "past_key_values",
    "cache_params",
    "assistant_model",
    "custom_generate",
)


class LayerValues:
    """Cuts and joins `LayerTensors` along the token axis; every result is a copy."""

    def __init__(self, num_tensors: int) -> None:
        self._num_tensors = num_tensors

    def length(self, values: LayerTensors) -> int:
        """Tokens of the first layer; all layers have as many."""
        return values[0].shape[_TOKENS]

    def cut(self, values: LayerTensors, start: int, stop: int) -> LayerTensors:
        """Clones, outside any autograd graph: a view would keep the whole of a longer sequence in
        memory, and a graph all that it was computed from.
        """
        return tuple(part.narrow(_TOKENS, start, stop - start).detach().clone() for part in values)

    def join(self, parts: Sequence[LayerTensors]) -> LayerTensors:
        """One new tensor for each of a layer's; without parts, tensors of no tokens."""
        if not parts:
            return (torch.empty(1, 0, 0, 0),) * self._num_tensors
        return tuple(torch.cat(same, dim=_TOKENS) for same in zip(*parts))


class PrefixCache:
    """Generates with a model and keeps what was computed, for prompts that begin alike.

    The output is what the model gives without: equal up to the rounding of sums that are split
    otherwise, because the model sees the same tokens at the same positions. At least the last token
    of a prompt is always computed. What a call computed is kept whole, its output included, so the
    next turn of a conversation finds it.

    Args:
        model: a causal language model of transformers whose layers all keep K and V of every token
            (`DynamicLayer`). Others are refused: sliding windows and recurrent states have no
            values by token, and rotary scalings that follow the sequence length ("dynamic",
            "longrope") make K depend on what comes later.
        max_tokens: how many tokens are kept; the policy decides which go. For a moment at the end
            of a call, up to its own tokens more. A token takes 2 x layers x KV heads x head_dim
            numbers (46 KB for SmolLM2-135M in float32).
        page_size: prefixes are shared in whole pages of so many tokens.
        policy: what goes first, as in `RadixCache`.

    Values are held as they were computed, a tensor for K and one for V of each layer in each node
    of the tree; no pool is set aside. A hit copies its tokens twice (out of the tree, and into the
    `DynamicCache`), a node that is split once: memory copies, far cheaper than the forward pass
    that they save.

    After a change of the model's weights, adapter, dtype or device: another `namespace`, or
    `clear()`. One thread at a time.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_tokens: int,
        page_size: int = 16,
        policy: str | EvictionPolicy = "lru",
    ) -> None:
        if max_tokens < page_size:
            raise ValueError(
                f"max_tokens {max_tokens} is less than page_size {page_size}: nothing would be kept"
            )
        _check_model(model)
        self._model = model
        self._max_tokens = max_tokens
        layers = len(DynamicCache(config=model.config).layers)
        self._tree = RadixCache(page_size, policy, values=LayerValues(2 * layers))

    @property
    def tree(self) -> RadixCache:
        """The cache inside, for its `stats`, `sizes`, `explain` and `render`."""
        return self._tree

    def generate(self, input_ids: torch.Tensor, *, namespace: Namespace = (), **kwargs: Any) -> Any:
        """`model.generate(input_ids, **kwargs)`, without computing again what is kept.

        `input_ids` is int64 [1, num_tokens]: one prompt, no padding. Calls share what they have in
        common only within one `namespace`. What is asked for the prompt itself
        (`output_hidden_states`, `output_attentions`) covers only the tokens that are computed.

        Raises `ValueError`, before anything runs, for what could not give the output of a plain
        call: several rows or beams, padding, a cache of the caller's own, chunked prefill, decoding
        that cuts its cache back (assisted, contrastive), and further tensors (images, embeddings),
        because K and V would then depend on more than the tokens.
        """
        _check_prompt(input_ids)
        self._check_options(input_ids, kwargs)
        kwargs["attention_mask"] = torch.ones_like(input_ids)
        kwargs[CACHE_ARGUMENT] = cache = self.load(input_ids, namespace)
        output = self._model.generate(input_ids, **kwargs)
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        self.store(sequences, cache, namespace)
        return output

    def load(self, input_ids: torch.Tensor, namespace: Namespace = ()) -> DynamicCache:
        """A cache that holds the longest kept prefix of a prompt [1, num_tokens], maybe nothing.

        For a forward loop of your own: give `input_ids[:, cache.get_seq_length():]`, at least one
        token, to the model with this cache (by the name of `CACHE_ARGUMENT`), then `store`. The
        tensors are yours.
        """
        _check_prompt(input_ids)
        found = self._tree.match(Key(input_ids[0, :-1].tolist(), namespace))
        if not found.length:
            return DynamicCache(config=self._model.config)
        values = found.values()
        return DynamicCache(zip(values[::2], values[1::2]), config=self._model.config)

    def store(
        self, sequences: torch.Tensor, cache: DynamicCache, namespace: Namespace = ()
    ) -> None:
        """Keep what `cache` holds of the tokens in `sequences` [1, num_tokens].

        Only what is not kept yet is copied, without its autograd graph. `cache` must hold K and V
        of the first tokens of `sequences`, of no others; the last token that was generated is in
        the one and not yet in the other.
        """
        _check_prompt(sequences)
        _check_cache(cache, sequences.shape[1])
        values = tuple(part for layer in cache.layers for part in (layer.keys, layer.values))
        computed = cache.get_seq_length()
        self._tree.insert(Key(sequences[0, :computed].tolist(), namespace), values)
        self._tree.evict(self._tree.sizes.total - self._max_tokens)

    def clear(self) -> None:
        """Forget everything."""
        self._tree.reset()

    def _check_options(self, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> None:
        for name in _REFUSED_ARGUMENTS:
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} cannot be given with a prefix cache: leave it out")
        # As `generate` itself: arguments before the given configuration before the model's own.
        options: dict[str, Any] = {}
        given = kwargs.get("generation_config")
        for config in (self._model.generation_config, given):
            if config is not None:
                options |= {k: v for k, v in config.to_dict().items() if v is not None}
        options |= kwargs
        for name, allowed in _REFUSED_OPTIONS.items():
            if (value := options.get(name)) not in allowed:
                raise ValueError(
                    f"{name}={value!r} does not work with a prefix cache: leave it out, or call "
                    "the model itself"
                )
        mask = kwargs.pop("attention_mask", None)
        if mask is None:
            _check_no_padding(input_ids, options.get("pad_token_id"), options.get("eos_token_id"))
        elif mask.shape != input_ids.shape or not bool((mask == 1).all()):
            raise ValueError("attention_mask hides tokens: pass one prompt without padding")
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor):
                raise ValueError(
                    f"{name} is a tensor that the prompt's K and V may depend on, and they are "
                    "found by token ids alone: call the model itself"
                )


def _check_model(model: Any) -> None:
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} has an encoder, on which K and V depend: only decoder-only "
            "models have prefixes to share"
        )
    layers = DynamicCache(config=model.config).layers
    others = sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})
    if others:
        raise ValueError(
            f"{type(model).__name__} caches in {', '.join(others)}, which does not hold K and V of "
            "every token: only full attention in every layer is supported"
        )
    settings = config.to_dict()
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    for part in (rope, *(nested for nested in rope.values() if isinstance(nested, dict))):
        kind = str(part.get("rope_type"))
        if "dynamic" in kind or kind == "longrope":
            raise ValueError(
                f"rotary scaling {kind!r} changes K of a prefix with the length of what follows: "
                "it cannot be shared"
            )


def _check_prompt(input_ids: torch.Tensor) -> None:
    if input_ids.ndim != 2 or input_ids.shape[0] != 1 or not input_ids.shape[1]:
        raise ValueError(
            f"input_ids has shape {tuple(input_ids.shape)}: pass one prompt at a time, as "
            "[1, num_tokens] with at least one token"
        )


def _check_no_padding(
    input_ids: torch.Tensor, pad: int | None, eos: int | list[int] | None
) -> None:
    """`generate` hides pad tokens of a prompt when no mask is given, unless they also end one."""
    ends = eos if isinstance(eos, list) else [eos]
    if pad is not None and pad not in ends and bool((input_ids == pad).any()):
        raise ValueError(
            f"the prompt holds the pad token {pad}, which generate would hide: take the padding "
            "off, or pass attention_mask of ones if it is meant to be read"
        )


def _check_cache(cache: DynamicCache, num_tokens: int) -> None:
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            raise ValueError(f"a layer of the cache is a {type(layer).__name__}: use DynamicLayer")
        held = 0 if layer.keys is None else layer.get_seq_length()
        if not 0 < held <= num_tokens or layer.keys.shape[0] != 1:
            raise ValueError(
                f"a layer of the cache holds {held} tokens of a sequence of {num_tokens}: it must "
                "hold one row with K and V of its first tokens (does the model use the cache?)"
            )
