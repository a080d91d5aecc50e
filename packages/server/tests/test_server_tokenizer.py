from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.server.tokenizer import Tokenizer

TEXTS = [
    "",
    "The capital of France is Paris.",
    "  two spaces,\ttab\n\nlines   ",
    "def f(x):\n    return x ** 2  # 12345",
    "Příliš žluťoučký kůň 世界 🌳 नमस्ते",
    "<|im_start|>user\nhi<|im_end|>",
    "don't we'll I'M",
]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " What? \n"}],
    [
        {"role": "user", "content": "<|im_end|> 世"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "And {{ 1 + 1 }}?", "name": None},
    ],
]


def copy_with(folder: Path, target: Path, **config) -> Path:
    """The tokenizer of `folder` with another configuration."""
    (target / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (target / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )
    return target


def check_against_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.from_folder(folder)
    for text in TEXTS:
        for special in (True, False):
            expected = theirs(text, add_special_tokens=special)["input_ids"]
            assert ours.encode(text, add_special_tokens=special) == expected
        assert ours.decode(ours.encode(text)) == theirs.decode(
            theirs(text)["input_ids"], skip_special_tokens=True
        )
    for chat in CHATS:
        for prompt in (True, False):
            assert ours.render_chat(chat, prompt) == theirs.apply_chat_template(
                chat, add_generation_prompt=prompt, tokenize=False
            )
            assert ours.encode_chat(chat, prompt) == theirs.apply_chat_template(
                chat, add_generation_prompt=prompt, return_dict=False
            )
    assert ours.vocab_size == len(theirs)
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.pad_token_id == theirs.pad_token_id
    assert ours.special_ids == set(theirs.all_special_ids) | ours.special_ids


def test_a_trained_tokenizer_equals_transformers(byte_level_folder):
    check_against_transformers(byte_level_folder)


def test_the_default_model_equals_transformers():
    sources = pytest.importorskip("phloem.model_runner.sources")
    try:
        folder = sources.resolve_model("smollm2")
    except sources.ModelSourceError as absent:
        pytest.skip(str(absent))
    check_against_transformers(folder.path)


def test_tokens_that_only_the_config_declares_equal_transformers(byte_level_folder, tmp_path):
    backend = tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
    folder = copy_with(
        byte_level_folder,
        tmp_path,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
        bos_token="<|im_start|>",
        added_tokens_decoder={
            str(backend.get_vocab_size()): {"content": "<|pad|>", "special": True}
        },
    )
    check_against_transformers(folder)


def test_padding_and_truncation_of_the_file_are_not_applied(byte_level_folder, tmp_path):
    backend = tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.from_folder(tmp_path).encode("capital xyz")) > 2


def test_the_template_file_wins_over_the_config(byte_level_folder, tmp_path):
    folder = copy_with(byte_level_folder, tmp_path, chat_template="config")
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer.from_folder(folder).render_chat(CHATS[0]) == "file"


def test_of_named_templates_the_default_is_taken(byte_level_folder, tmp_path):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    folder = copy_with(byte_level_folder, tmp_path, chat_template=named)
    assert Tokenizer.from_folder(folder).render_chat(CHATS[0]) == "d"


def test_templates_find_what_they_expect(byte_level_folder, tmp_path):
    source = (
        "{% for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ {'a': '<é>'} | tojson }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}{{ eos_token }}"
    )
    folder = copy_with(byte_level_folder, tmp_path, chat_template=source, eos_token="<|im_end|>")
    assert Tokenizer.from_folder(folder).render_chat(CHATS[1]) == '{"a": "<é>"}4<|im_end|>'
    check_against_transformers(folder)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('only user') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0]['content'] + 1 }}",
        "{% if %}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_of_the_chat(byte_level_folder, source):
    backend = tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
    with pytest.raises(ValueError, match="chat template failed"):
        Tokenizer(backend, chat_template=source).render_chat(CHATS[0])


def test_a_model_without_a_template_says_so(sentencepiece):
    assert not sentencepiece.has_chat_template
    with pytest.raises(ValueError, match="no chat template"):
        sentencepiece.encode_chat(CHATS[0])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages is empty"),
        ("hi", "messages is a str"),
        ({"role": "user", "content": "x"}, "messages is a dict"),
        (None, "messages is a NoneType"),
        (["hi"], "message 0 is a str"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "message 1 has no role"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": 3}], "message 0 has a content of type int"),
        ([{"role": ["user"], "content": "x"}], "message 0 has a role of type list"),
        ([{"role": "", "content": "x"}], "message 0 has an empty role"),
    ],
)
def test_malformed_messages_are_named(byte_level, messages, says):
    with pytest.raises(ValueError, match=says):
        byte_level.encode_chat(messages)


@pytest.mark.parametrize("text", [None, 3, b"bytes", "half \ud83c"])
def test_what_is_no_text_is_refused(byte_level, text):
    with pytest.raises(ValueError, match="the prompt"):
        byte_level.encode(text)


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="is no tokenizer"):
        Tokenizer.from_folder(tmp_path)


def test_a_broken_config_is_an_error(byte_level_folder, tmp_path):
    folder = copy_with(byte_level_folder, tmp_path)
    for text, says in (("{", "is no JSON"), ("[]", "not an object")):
        (folder / "tokenizer_config.json").write_text(text)
        with pytest.raises(ValueError, match=says):
            Tokenizer.from_folder(folder)


def test_ids_and_tokens_map_both_ways(byte_level):
    assert byte_level.id_to_token(byte_level.token_to_id("<|im_end|>")) == "<|im_end|>"
    assert byte_level.id_to_token(-1) is None
    assert byte_level.id_to_token(10**6) is None
    assert byte_level.token_to_id("no such token") is None


@settings(max_examples=50)
@given(text=st.text())
def test_encoding_loses_nothing(byte_level, text):
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "wordpiece"])
def test_ids_are_those_of_the_library(kind, request):
    tokenizer = request.getfixturevalue(kind)
    for text in [*TEXTS, "hello worlds!", "</s>a<|endoftext|>", "🌳" * 50]:
        for special in (True, False):
            expected = tokenizer._backend.encode(text, add_special_tokens=special).ids
            assert tokenizer.encode(text, add_special_tokens=special) == expected


@given(
    st.text() | st.lists(st.sampled_from(["the", " ", "Paris", "<|im_end|>", "世"])).map("".join)
)
def test_no_text_has_fewer_tokens_than_its_bytes_allow(byte_level, text):
    assert byte_level.least_tokens("a" * 13 * 7 + "b") == 8  # of "<|endoftext|>", the longest
    assert len(byte_level.encode(text)) >= byte_level.least_tokens(text)


def test_bytes_that_the_vocabulary_lacks_count_for_no_token(byte_level_folder):
    state = json.loads((byte_level_folder / "tokenizer.json").read_text())
    del state["model"]["vocab"]["\u0104"]  # the byte 4
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)))
    assert tokenizer.encode("\x04" * 100) == []
    assert tokenizer.least_tokens("\x04" * 100) == 0
    assert tokenizer.least_tokens("\x04a" * 26) == 2


def test_a_text_that_can_shrink_has_no_least_tokens(byte_level_folder, sentencepiece, wordpiece):
    assert sentencepiece.least_tokens is None
    assert wordpiece.least_tokens is None
    for part in (tokenizers.normalizers.Strip(), tokenizers.pre_tokenizers.Whitespace()):
        backend = tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
        name = "normalizer" if hasattr(part, "normalize") else "pre_tokenizer"
        setattr(backend, name, part)
        assert Tokenizer(backend).least_tokens is None
    backend = tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
    backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    assert Tokenizer(backend).least_tokens is None
