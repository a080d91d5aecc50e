"""Building `tokenizer.json` and `tokenizer_config.json` from the tokenizer metadata of a GGUF file.

Owns the mapping of llama.cpp's tokenizer kinds (byte-level BPE with a named pre-tokenizer, and
SentencePiece-style BPE with scores) to the `tokenizers` library. A kind whose ids could differ from
the model's own is refused. Encoding and decoding belong to whoever loads the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from .gguf_file import GgufError, GgufFile

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_SPACE = "▁"


class TokenType(IntEnum):
    """llama.cpp's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _ByteLevelRule:
    """How a named pre-tokenizer cuts text before byte-level BPE."""

    splits: tuple[pre_tokenizers.PreTokenizer, ...]
    own_regex: bool
    normalizer: normalizers.Normalizer | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


_GPT2 = _ByteLevelRule(splits=(), own_regex=True)
_LLAMA3 = _ByteLevelRule((_split(_LLAMA3_WORDS),), False, ignore_merges=True, adds_bos=True)
_BYTE_LEVEL_RULES: Mapping[str, _ByteLevelRule] = {
    # A file without a name was written before the names existed, when GPT-2's cut was the only one.
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _ByteLevelRule((pre_tokenizers.Digits(individual_digits=True),), own_regex=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _ByteLevelRule((_split(_QWEN2_WORDS),), False, normalizer=normalizers.NFC()),
}


@dataclass(frozen=True)
class _Vocabulary:
    """The tokenizer metadata, checked: one unique text and one type per id."""

    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[str]

    @property
    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}


def write_tokenizer(source: GgufFile, folder: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` (with the chat template) to `folder`.

    Raises `GgufError` for a tokenizer that cannot be reproduced exactly.
    """
    build_tokenizer(source).save(str(folder / "tokenizer.json"))
    text = json.dumps(tokenizer_config(source), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def build_tokenizer(source: GgufFile) -> Tokenizer:
    """The tokenizer that the metadata describe; ids are those of the file."""
    vocabulary = _vocabulary(source)
    kind = source.require("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(source, vocabulary)
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece(source, vocabulary), True
    else:
        raise GgufError(
            f"{source.path.name} has a tokenizer of kind {kind!r}, but only gpt2 (byte-level BPE) "
            "and llama (SentencePiece BPE) can be converted: use the model's safetensors folder"
        )
    _add_special(tokenizer, vocabulary)
    _add_bos_and_eos(tokenizer, source, vocabulary, adds_bos)
    return tokenizer


def tokenizer_config(source: GgufFile) -> dict[str, Any]:
    """`tokenizer_config.json`: the class, the named special tokens and the chat template."""
    tokens = source.require("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(source.require("llama.context_length")),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = source.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and 0 <= index < len(tokens):
            config[f"{name}_token"] = tokens[index]
    template = source.metadata.get("tokenizer.chat_template")
    return config if template is None else config | {"chat_template": template}


def _vocabulary(source: GgufFile) -> _Vocabulary:
    tokens = source.require("tokenizer.ggml.tokens")
    types = source.metadata.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(tokens))
    scores = source.metadata.get("tokenizer.ggml.scores")
    if len(set(tokens)) != len(tokens) or len(types) != len(tokens):
        raise GgufError(
            f"{source.path.name} has {len(tokens)} tokens, {len(set(tokens))} different ones and "
            f"{len(types)} types, which must be equal: get a correctly converted file"
        )
    return _Vocabulary(tokens, types, scores, source.metadata.get("tokenizer.ggml.merges", ()))


def _byte_level(source: GgufFile, vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    name = source.metadata.get("tokenizer.ggml.pre", "default")
    if name not in _BYTE_LEVEL_RULES:
        raise GgufError(
            f"{source.path.name} needs the pre-tokenizer {name!r}, but only "
            f"{', '.join(_BYTE_LEVEL_RULES)} are known: use the model's safetensors folder"
        )
    rule = _BYTE_LEVEL_RULES[name]
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in vocabulary.merges)]
    ids = vocabulary.ids
    unknown = next((pair for pair in merges if not {*pair, "".join(pair)} <= ids.keys()), None)
    if unknown is not None or not merges:
        what = "no merges" if unknown is None else f"a merge {unknown} of or to an unknown token"
        raise GgufError(f"{source.path.name} has {what}: get a correctly converted file")
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=rule.ignore_merges))
    if rule.normalizer is not None:
        tokenizer.normalizer = rule.normalizer
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.own_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*rule.splits, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.adds_bos


def _sentencepiece(source: GgufFile, vocabulary: _Vocabulary) -> Tokenizer:
    unknown = source.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            _merges_from_scores(source, vocabulary),
            unk_token=vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(source.metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix else back)
    return tokenizer


def _merges_from_scores(source: GgufFile, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that joins to a token, best score of the result first.

    SentencePiece BPE joins the neighbours whose result scores highest, which is what a ranked merge
    list does when the ranks follow the scores. Only normal tokens result from a merge. Of equal
    scores SentencePiece takes the leftmost, which ranks cannot say: such a file is refused.
    """
    if vocabulary.scores is None or len(vocabulary.scores) != len(vocabulary.tokens):
        raise GgufError(
            f"{source.path.name} has a SentencePiece tokenizer without one score per token: "
            "get a correctly converted file"
        )
    normal = {
        token: index
        for index, token in enumerate(vocabulary.tokens)
        if vocabulary.types[index] == TokenType.NORMAL
    }
    merges = [
        (-vocabulary.scores[index], index, token[:cut], token[cut:])
        for token, index in normal.items()
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    results = {(score, index) for score, index, _, _ in merges}
    if len({score for score, _ in results}) != len(results):
        raise GgufError(
            f"{source.path.name} has a SentencePiece tokenizer with equal scores, so the order of "
            "its merges is not known: use the model's safetensors folder"
        )
    return [(left, right) for _, _, left, right in sorted(merges)]


def _add_special(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    special, ordinary = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == TokenType.USER_DEFINED:
            ordinary.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(ordinary)


def _add_bos_and_eos(
    tokenizer: Tokenizer, source: GgufFile, vocabulary: _Vocabulary, adds_bos: bool
) -> None:
    def wanted(name: str, default: bool) -> list[tuple[str, int]]:
        index = source.metadata.get(f"tokenizer.ggml.{name}_token_id")
        flag = source.metadata.get(f"tokenizer.ggml.add_{name}_token", default)
        return [(vocabulary.tokens[index], int(index))] if flag and index is not None else []

    before, after = wanted("bos", adds_bos), wanted("eos", False)
    if not before and not after:
        return
    first = [*(token for token, _ in before), "$A", *(token for token, _ in after)]
    second = [*(f"{token}:1" for token, _ in before), "$B:1", *(f"{token}:1" for token, _ in after)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=first, pair=[*first, *second], special_tokens=before + after
    )
