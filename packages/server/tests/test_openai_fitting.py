"""Texts that cannot fit are refused before they are tokenized; long ones are tokenized apart."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from phloem.server.http.chat_protocol import ChatRequest
from phloem.server.http.chat_request import prepare_chat
from phloem.server.http.completion_request import prepare_completion
from phloem.server.http.errors import ApiError
from phloem.server.http.fitting import check_fits
from phloem.server.http.generation import Generation
from phloem.server.http.limits import Limiter
from phloem.server.http.logprobs import TokenNames
from phloem.server.http.metrics import Metrics
from phloem.server.http.native import prepare_native
from phloem.server.http.protocol import CompletionRequest, GenerateRequest
from phloem.server.http.service import Service
from phloem.server.http.tenancy import Caller
from phloem.server.keys import KeyLimits
from phloem.server.messages import Limits

LIMITS = Limits(context_len=100, max_total_tokens=90, vocab_size=400, capacity=1000)


class Watched:
    """A tokenizer that notes what it is asked to encode, and in which thread."""

    def __init__(self, tokenizer, bound=True):
        self._tokenizer = tokenizer
        self.least_tokens = tokenizer.least_tokens if bound else None
        self.encoded = []
        self.threads = set()

    def encode(self, text, add_special_tokens=True):
        self.encoded.append(len(text))
        self.threads.add(threading.get_ident())
        return self._tokenizer.encode(text, add_special_tokens)

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


def test_what_is_too_long_by_its_bytes_is_not_tokenized(byte_level):
    tokenizer = Watched(byte_level)
    with pytest.raises(
        ApiError, match="at least 76924 tokens: the context is 100 tokens"
    ) as caught:
        check_fits(tokenizer, LIMITS, "a" * 1_000_000, "prompt")
    assert caught.value.status == 400
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    assert not tokenizer.encoded


def test_without_a_bound_a_part_of_the_text_tells(byte_level):
    tokenizer = Watched(byte_level, bound=False)
    with pytest.raises(ApiError, match="at least"):
        check_fits(tokenizer, LIMITS, "x y " * 100_000, "text")
    assert tokenizer.encoded == [64 * 90]


def test_texts_of_few_tokens_pass_however_long_they_are(wordpiece):
    tokenizer = Watched(wordpiece)
    check_fits(tokenizer, LIMITS, "hello" + " " * 100_000 + "world", "text")
    check_fits(tokenizer, LIMITS, "hello", "text")
    assert tokenizer.encoded == [64 * 90]


def test_text_near_the_limit_is_left_to_the_engine(byte_level):
    check_fits(byte_level, LIMITS, "x" * 500, "prompt")
    check_fits(byte_level, LIMITS, "\ud800" * 200, "prompt")


async def prepare(kind, frontend, text):
    metrics = Metrics()
    generation = Generation(frontend, metrics)
    names, limiter = TokenNames(frontend.tokenizer), Limiter(KeyLimits())
    service = Service(frontend, metrics, "m", names, generation, 1 << 20, limiter)
    if kind == "chat":
        request = ChatRequest(messages=[{"role": "user", "content": text}])
        return await prepare_chat(service, request, Caller())
    if kind == "completion":
        return await prepare_completion(service, CompletionRequest(prompt=text), Caller())
    return await prepare_native(service, GenerateRequest(text=text), Caller())


GRAMMAR = SimpleNamespace(whitespace="bounded")
KINDS = {"chat": "messages", "completion": "prompt", "native": "text"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_endpoint_refuses_without_tokenizing(byte_level, kind):
    frontend = SimpleNamespace(tokenizer=Watched(byte_level), limits=LIMITS, grammar=GRAMMAR)
    with pytest.raises(ApiError, match="at least") as caught:
        asyncio.run(prepare(kind, frontend, "a" * 100_000))
    assert caught.value.param == KINDS[kind]
    assert not frontend.tokenizer.encoded


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_tokenized_outside_the_loop(byte_level, kind):
    limits = Limits(context_len=10**6, max_total_tokens=10**6, vocab_size=400, capacity=10**6)
    frontend = SimpleNamespace(tokenizer=Watched(byte_level), limits=limits, grammar=GRAMMAR)
    asyncio.run(prepare(kind, frontend, "a" * 30_000))
    assert frontend.tokenizer.encoded
    assert threading.get_ident() not in frontend.tokenizer.threads
