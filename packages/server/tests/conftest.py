"""Small tokenizers, one of each family, and the `phloem` command over an engine that pretends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
from click.testing import CliRunner
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from phloem.server.cli import main
from phloem.server.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level_backend() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the capital of France is Paris, the capital"] * 4, trainer)
    return backend


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte_level")
    byte_level_backend().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": {"__type": "AddedToken", "content": "<|im_start|>", "special": True},
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(byte_level_folder)


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """Pieces with a mark for the space, and a token for each byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "P", "▁a", "▁P", "ab", "▁ab", "é", "▁▁"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "a"), ("▁", "P"), ("a", "b"), ("▁a", "b"), ("▁", "▁")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return Tokenizer(backend, special_tokens={"eos_token": "</s>"})


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    """A decoder that puts spaces between words, so that no token has text of its own."""
    pieces = ["[UNK]", "hello", "world", "##s", "!"]
    backend = tokenizers.Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return Tokenizer(backend)


def meta(finish="stop", cached=2, **more):
    return {
        "finish_reason": finish and {"type": finish, **more},
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "cached_tokens": cached,
        "timings": {"ttft": 0.5, "decode": 0.1, "total": 0.6},
    }


class FakeEngine:
    """Answers `<prompt>!` in two pieces, and remembers what it was asked."""

    def __init__(self, answer=lambda given: [f"<{given}", ">!"], finish=None, **options):
        self.options = options
        self.asked = []
        self.closed = False
        self._answer = answer
        self._finish = finish or {"finish": "stop"}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def generate(self, prompts=None, sampling_params=None, *, input_ids=None, stream=False):
        return self._run(prompts if input_ids is None else input_ids, sampling_params, stream)

    def chat(self, messages, sampling_params=None, *, stream=False):
        return self._run([m["content"] for m in messages], sampling_params, stream)

    def _run(self, given, params, stream):
        self.asked.append((given, dict(params)))
        pieces = self._answer(given)
        if isinstance(pieces, Exception):
            raise pieces
        if not stream:
            return {
                "text": "".join(pieces),
                "output_ids": [1, 2],
                "meta_info": meta(**self._finish),
            }
        last = len(pieces) - 1
        return (
            {"text": p, "meta_info": meta(**self._finish) if i == last else meta(None)}
            for i, p in enumerate(pieces)
        )


@pytest.fixture
def fake_engine():
    return FakeEngine


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    engine: FakeEngine | None


@pytest.fixture
def phloem():
    def run(*args, stdin=None, **engine):
        made = []

        def factory(**options):
            made.append(FakeEngine(**engine, **options))
            return made[-1]

        result = CliRunner().invoke(main, args, input=stdin, obj=factory)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert all(engine.closed for engine in made)
        return Outcome(result.exit_code, result.stdout, result.stderr, made[0] if made else None)

    return run
