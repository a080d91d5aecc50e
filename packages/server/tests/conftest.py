"""Small tokenizers, one of each family, trained or built on the spot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

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
