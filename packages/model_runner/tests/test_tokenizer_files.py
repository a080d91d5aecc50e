"""Tokenizers built from GGUF metadata, against brute force, transformers and the real smollm2."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from phloem.model_runner.gguf_file import GgufError, GgufFile
from phloem.model_runner.tokenizer_files import TokenType, build_tokenizer, write_tokenizer

CORPUS = [
    "The year 2024 had 366 days, and 2024 2024 2024 is a number.",
    "def f(x):\n\treturn x + 1\n\n\n    pass",
    "I'll say it's HERE, don't you THINK so? I'LL!",
    "你好世界 你好世界 žluťoučký kůň",
] * 4
TEXTS = [
    "Hello world, this is plain English.",
    "2024 3.14 and 100,000",
    " leading and trailing ",
    "你好世界。こんにちは",
    "🙂👨‍👩‍👧 ďě",
    "def f(x):\n\treturn  x + 1\r\n\n\n",
    "don't I'LL",
]
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}"


def byte_level_metadata(pre="smollm", **changes):
    """A GPT-2 style vocabulary whose merges join digits, so that a pre-tokenizer matters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=440,
        special_tokens=["<|end|>", "<|user|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    vocabulary = trained.get_vocab()
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), "<tool>"]
    normal = len(tokens) - 3
    types = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * normal + [TokenType.USER_DEFINED]
    state = trained.to_str()
    merges = [" ".join(pair) for pair in json.loads(state)["model"]["merges"]]
    return {
        "llama.context_length": 128,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    } | changes


def scored_metadata(pieces, **changes):
    """A SentencePiece style vocabulary: `pieces` and their scores after specials and all bytes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    return {
        "llama.context_length": 128,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | changes


def gguf(metadata):
    return GgufFile(Path("tiny.gguf"), metadata, ())


def pieces_of(tokenizer, text):
    return [text[start:end] for start, end in tokenizer.encode(text).offsets]


METADATA = byte_level_metadata()
BY_PRE = {
    pre: build_tokenizer(gguf(METADATA | {"tokenizer.ggml.pre": pre}))
    for pre in ("smollm", "gpt-2", "default", "llama-bpe", "qwen2")
}


@pytest.mark.parametrize("pre", BY_PRE)
@pytest.mark.parametrize("text", TEXTS)
def test_varied_texts_survive_encoding_and_decoding(pre, text):
    tokenizer = BY_PRE[pre]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@given(st.text(max_size=60))
def test_any_text_survives_the_smollm_tokenizer(text):
    tokenizer = BY_PRE["smollm"]
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_smollm_and_qwen2_make_every_digit_a_token_and_gpt2_does_not():
    assert pieces_of(BY_PRE["smollm"], "2024") == ["2", "0", "2", "4"]
    assert pieces_of(BY_PRE["qwen2"], "2024") == ["2", "0", "2", "4"]
    assert pieces_of(BY_PRE["gpt-2"], "2024") == ["202", "4"]


def test_llama_bpe_cuts_words_as_llama_3_does():
    cut = BY_PRE["llama-bpe"].pre_tokenizer.pre_tokenize_str("I'LL pay 12345!!\n\n  x=(y)")
    spans = [("I'LL pay 12345!!\n\n  x=(y)")[start:end] for _, (start, end) in cut]
    expected = ["I", "'LL", " pay", " ", "123", "45", "!!\n\n", " ", " x", "=(", "y", ")"]
    assert spans == expected


def test_qwen2_composes_accents_before_it_encodes():
    tokenizer = BY_PRE["qwen2"]
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


def test_control_and_user_defined_tokens_are_found_in_text_and_only_control_is_special():
    tokenizer = BY_PRE["smollm"]
    tokens = METADATA["tokenizer.ggml.tokens"]
    ids = tokenizer.encode("<|user|>a<tool>b<|end|>").ids
    assert [tokens[i] for i in ids] == ["<|user|>", "a", "<tool>", "b", "<|end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<tool>b"


def test_ids_are_those_of_the_file():
    for tokenizer in BY_PRE.values():
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        assert sorted(vocabulary, key=vocabulary.get) == METADATA["tokenizer.ggml.tokens"]


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("add_eos", [True, False])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_begin_and_end_tokens_follow_the_flags_of_the_file(tmp_path, kind, add_bos, add_eos):
    flags = {"tokenizer.ggml.add_bos_token": add_bos, "tokenizer.ggml.add_eos_token": add_eos}
    base = METADATA if kind == "gpt2" else scored_metadata({"▁": -1.0, "a": -2.0, "▁a": -3.0})
    metadata = base | flags
    write_tokenizer(gguf(metadata), tmp_path)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    inner = plain.encode("a", add_special_tokens=False).ids
    bos = [metadata["tokenizer.ggml.bos_token_id"]] if add_bos else []
    eos = [metadata["tokenizer.ggml.eos_token_id"]] if add_eos else []
    assert plain.encode("a").ids == bos + inner + eos
    assert plain.encode("a", "a").ids == (bos + inner + eos) * 2
    assert AutoTokenizer.from_pretrained(tmp_path)("a").input_ids == bos + inner + eos


def test_without_a_flag_llama_3_and_sentencepiece_begin_with_bos_and_smollm_does_not():
    assert BY_PRE["llama-bpe"].encode("a").ids[0] == 1
    assert build_tokenizer(gguf(scored_metadata({"a": -1.0}))).encode("a").ids[0] == 1
    assert BY_PRE["smollm"].encode("a").ids[0] != 1


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2"])
def test_transformers_loads_the_files_and_agrees(tmp_path, pre):
    write_tokenizer(gguf(METADATA | {"tokenizer.ggml.pre": pre}), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*TEXTS, "<|user|>hi<|end|>"]:
        assert loaded(text).input_ids == plain.encode(text).ids
    assert (loaded.bos_token, loaded.eos_token) == ("<|user|>", "<|end|>")
    assert loaded.model_max_length == 128
    chat = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|user|>hi"


SCORED = {"▁": -20.0, "a": -21.0, "b": -22.0, "c": -23.0, "ab": -3.0, "bc": -2.0, "abc": -7.0}
SCORED |= {"▁a": -4.0, "▁ab": -1.0, "aa": -6.0, "▁▁": -5.0, "ca": -8.0, "cab": -9.0}


def merge_by_scores(text, scores):
    """SentencePiece BPE by its definition: join the best scoring neighbours, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        joined = [
            (scores.get(a + b, -1e9), -i) for i, (a, b) in enumerate(itertools.pairwise(symbols))
        ]
        best, at = max(joined, default=(-1e9, 0))
        if best == -1e9:
            break
        symbols[-at : -at + 2] = ["".join(symbols[-at : -at + 2])]
    return [
        token
        for symbol in symbols
        for token in ([symbol] if symbol in scores else [f"<0x{b:02X}>" for b in symbol.encode()])
    ]


@given(st.text(alphabet="abc dž🙂", min_size=1, max_size=30))
def test_sentencepiece_joins_the_best_scores_first_and_falls_back_to_bytes(text):
    tokenizer = build_tokenizer(gguf(scored_metadata(SCORED)))
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert encoded.tokens == merge_by_scores(text, SCORED)
    assert tokenizer.decode(encoded.ids) == text


def test_sentencepiece_without_a_space_prefix_leaves_the_text_alone():
    metadata = scored_metadata(SCORED, **{"tokenizer.ggml.add_space_prefix": False})
    tokenizer = build_tokenizer(gguf(metadata))
    encoded = tokenizer.encode("ab a", add_special_tokens=False)
    assert encoded.tokens == ["ab", "▁a"]
    assert tokenizer.decode(encoded.ids) == "ab a"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer 'tekken'"),
        ({"tokenizer.ggml.model": "t5"}, "kind 't5'"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "2 tokens, 1 different"),
        ({"tokenizer.ggml.model": "llama"}, "without one score per token"),
        ({"tokenizer.ggml.merges": []}, "no merges"),
        ({"tokenizer.ggml.merges": ["Ġ ☃"]}, "a merge .* unknown token"),
    ],
)
def test_a_tokenizer_that_cannot_be_reproduced_is_refused_by_name(changes, says):
    with pytest.raises(GgufError, match=says):
        build_tokenizer(gguf(METADATA | changes))


def test_equal_scores_are_refused():
    with pytest.raises(GgufError, match="equal scores"):
        build_tokenizer(gguf(scored_metadata(SCORED | {"ab": -2.0})))


@pytest.fixture(scope="module")
def smollm2(converted_smollm2):
    return AutoTokenizer.from_pretrained(converted_smollm2)


def test_smollm2_encodes_as_its_authors_tokenizer_does(smollm2):
    assert smollm2("The capital of France is").input_ids == [504, 3575, 282, 4649, 314]
    assert smollm2.convert_ids_to_tokens(smollm2("2024 3.14").input_ids) == list("2024Ġ3.14")
    assert smollm2("<|im_start|>user<|im_end|>").input_ids == [1, 4093, 2]
    for text in TEXTS:
        assert smollm2.decode(smollm2(text).input_ids) == text


def test_smollm2_has_its_chat_template(smollm2):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = smollm2.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert text == turns + "<|im_start|>assistant\n"
