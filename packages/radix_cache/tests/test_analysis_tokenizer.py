import json

import pytest

from phloem.radix_cache.analysis.cli import main

pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SENTENCE = "[s] user assistant be kind to all hello there how are you fine"
TEMPLATE = (
    "[s] {% for m in messages %}{% if m.content is not string %}"
    "{{ raise_exception('text only') }}{% endif %}{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of a dozen words; every text gets [s] in front."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(SENTENCE.split())}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[s]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("[s] $A", None, [("[s]", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="[s]")
    fast.chat_template = TEMPLATE
    path = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(path)
    return path


def test_texts_and_chats_become_the_models_tokens(folder, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    chat = [{"role": "user", "content": "hello there"}]
    lines = [
        {"text": "be kind to all", "output": "fine"},
        {"input_ids": [0, 3, 4, 5, 1]},
        {"messages": chat},
        {"messages": [*chat, {"role": "assistant", "content": "how are you"}]},
        {"messages": [{"role": "user", "content": [7]}]},
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["--tokenizer", str(folder), "--page-size", "1", "--json"]
    assert main(["analyze", str(log), *arguments]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["unit"], report["units_per_token"]) == ("tokens", 1.0)
    # [s] be kind to all / the ids / [s] user hello there assistant, and four more words
    assert (report["prompt"], report["output"]) == (5 + 5 + 5 + 9, 1)
    # [s] be kind to / [s] / [s] user hello there assistant
    assert report["reusable"] == 4 + 1 + 5
    assert report["shared"][0]["begins"] == "[s] user hello there assistant"
    assert "line 5: the chat template refuses these messages: text only" in err


def test_a_folder_without_a_tokenizer_is_refused(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text('{"text": "a"}')
    assert main(["analyze", str(log), "--tokenizer", str(tmp_path)]) == 2
    assert "no tokenizer could be loaded" in capsys.readouterr().err
