"""The page of all fields, and that the fields of other APIs' clients are all on it."""

from __future__ import annotations

import importlib

import pytest
from repository_scripts import load_script

from phloem.server.http.chat_protocol import UNSUPPORTED_IN_CHAT, ChatRequest
from phloem.server.http.protocol import IGNORED, UNSUPPORTED_IN_COMPLETIONS, CompletionRequest


@pytest.fixture(scope="module")
def script():
    return load_script("api_fields")


def test_the_page_is_up_to_date(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert text == script.page(), "python scripts/api_fields.py writes it anew"


def test_every_field_is_on_the_page(script):
    text = script.page()
    for endpoint in script.ENDPOINTS:
        names = [*endpoint.shape.__struct_fields__, *endpoint.unsupported, *endpoint.ignored]
        assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("client", "known"),
    [
        (
            "chat.completion_create_params",
            {*ChatRequest.__struct_fields__, *UNSUPPORTED_IN_CHAT, *IGNORED},
        ),
        (
            "completion_create_params",
            {*CompletionRequest.__struct_fields__, *UNSUPPORTED_IN_COMPLETIONS, *IGNORED},
        ),
    ],
)
def test_every_field_of_openais_client_is_known(client, known):
    params = importlib.import_module(f"openai.types.{client}")
    fields = set(params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert fields - known == set()


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ("openai.types.responses.response_create_params.ResponseCreateParamsBase", "/v1/responses"),
        ("anthropic.types.message_create_params.MessageCreateParamsBase", "/v1/messages"),
    ],
)
def test_every_field_of_other_clients_is_known(script, params, path):
    module, _, name = params.rpartition(".")
    fields = getattr(importlib.import_module(module), name).__annotations__
    (endpoint,) = [each for each in script.ENDPOINTS if each.path == path]
    known = {*endpoint.shape.__struct_fields__, *endpoint.unsupported, *endpoint.ignored}
    assert set(fields) - known == set()
