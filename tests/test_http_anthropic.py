"""The official `anthropic` client against the server."""

from __future__ import annotations

import anthropic
import pytest

from phloem.server.http.auth import Access
from phloem.server.http.chat_setup import ChatOptions
from phloem.server.http.limits import Limiter
from phloem.server.keys import KeyLimits, make_ring

TEMPLATE = (
    "{% if tools %}[tools]{{ tools | length }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if enable_thinking %}<think>{% endif %}"
    "{% endif %}"
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
RESPONSES = [
    {"prompt": "[user]hello[assistant]", "output": "good day, sir"},
    {"prompt": "[user]hello[assistant]<think>", "output": "well\n</think>\n\nhi"},
    {"prompt": "[user]when?[assistant]in the", "output": " evening"},
    {"prompt": "[system]French.[user]hello[assistant]", "output": "bonjour"},
    {"prompt": "[tools]1[user]sum[assistant]", "output": f"so:\n{CALL}"},
    {"prompt": "[tools]1[user]sum[assistant]so:<add>[tool]2[assistant]", "output": "it is 2"},
]
SECRET = "a-key-of-nobody-else"
HELLO = [{"role": "user", "content": "hello"}]
ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def server(serve, write_script, marked):
    tokenizer = marked("<think>", "</think>")
    chat = ChatOptions(chat_template=TEMPLATE, tool_call_parser="hermes", reasoning_parser="qwen3")
    script = write_script(RESPONSES, tokenizer=tokenizer)
    return serve(script, {"chat": chat}, grammar_backend="fsm")


def anthropic_of(server, **options):
    return anthropic.Anthropic(
        **{"base_url": server.url, "api_key": "none", "max_retries": 0} | options
    )


@pytest.fixture(scope="module")
def client(server):
    return anthropic_of(server)


def create(client, messages=HELLO, **options):
    body = {"top_k": 1, **options.pop("extra_body", {})}
    asked = {"model": "tiny", "max_tokens": 100} | options
    return client.messages.create(messages=messages, extra_body=body, **asked)


def stream(client, messages=HELLO, **options):
    body = {"top_k": 1, **options.pop("extra_body", {})}
    asked = {"model": "tiny", "max_tokens": 100} | options
    return client.messages.stream(messages=messages, extra_body=body, **asked)


def test_a_message_is_answered(client):
    message = create(client)
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert [block.text for block in message.content] == ["good day, sir"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert prompt == len("[user]hello[assistant]")
    assert usage.output_tokens == len("good day, sir") + 1


def test_a_stream_is_the_whole_message(client):
    with stream(client) as events:
        texts = list(events.text_stream)
        final = events.get_final_message()
    assert len(texts) > 1
    whole = create(client)
    assert "".join(texts) == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_system_is_a_text_or_blocks(client):
    for system in ("French.", [{"type": "text", "text": "French."}]):
        assert create(client, system=system).content[0].text == "bonjour"


def test_a_stop_sequence_and_the_limit_end_a_message(client):
    message = create(client, stop_sequences=["day", "never"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "day")
    assert message.content[0].text == "good "
    message = create(client, max_tokens=4)
    assert (message.stop_reason, message.content[0].text) == ("max_tokens", "good")


def test_an_answer_goes_on_with_what_the_assistant_has_said(client):
    begun = [{"role": "user", "content": "when?"}, {"role": "assistant", "content": "in the"}]
    assert create(client, begun).content[0].text == " evening"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_used_and_its_result_goes_back(client, streamed):
    asked = [{"role": "user", "content": "sum"}]
    if streamed:
        with stream(client, asked, tools=[ADD]) as events:
            message = events.get_final_message()
    else:
        message = create(client, asked, tools=[ADD])
    text, use = message.content
    assert (use.type, use.name, use.input) == ("tool_use", "add", {"a": 1})
    assert message.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "2"}
    turn = [{"type": "text", "text": text.text.strip()}, use.model_dump(exclude_none=True)]
    messages = [
        *asked,
        {"role": "assistant", "content": turn},
        {"role": "user", "content": [result]},
    ]
    assert create(client, messages, tools=[ADD]).content[0].text == "it is 2"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_tool_is_sure_to_be_used(unthinking, choice):
    choice = choice | {"disable_parallel_tool_use": True}
    message = create(unthinking, tools=[ADD], tool_choice=choice)
    (use,) = message.content
    assert (use.name, use.input, message.stop_reason) == ("add", {"a": 1}, "tool_use")


@pytest.fixture(scope="module")
def unthinking(serve, write_script):
    """A client of a model whose outputs have no notation."""
    return anthropic_of(serve(write_script(RESPONSES), grammar_backend="fsm"))


def test_an_output_format_is_enforced(unthinking):
    schema = {"type": "object", "properties": {"w": {"enum": ["x"]}}, "required": ["w"]}
    schema |= {"additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    assert create(unthinking, output_config=config).content[0].text.replace(" ", "") == '{"w":"x"}'


@pytest.mark.parametrize("display", [None, "omitted"])
def test_thinking_is_a_block_where_it_is_asked_for(client, display):
    thinking = {"type": "adaptive"} | ({} if display is None else {"display": display})
    thought, text = create(client, extra_body={"thinking": thinking}).content
    with stream(client, extra_body={"thinking": thinking}) as events:
        streamed = events.get_final_message().content
    assert (streamed[0].thinking, streamed[1].text) == (thought.thinking, text.text)
    assert (thought.type, thought.thinking.strip()) == ("thinking", "" if display else "well")
    assert text.text == "hi"


def test_a_budget_bounds_thinking_where_the_model_thinks(client, unthinking):
    asked = {"thinking": {"type": "enabled", "budget_tokens": 2}}
    thought = create(client, extra_body=asked).content[0]
    assert (thought.type, thought.thinking.strip()) == ("thinking", "we")
    with pytest.raises(anthropic.BadRequestError, match=r"thinking\.budget_tokens"):
        create(unthinking, extra_body=asked)


def test_tokens_go_in_and_come_out(client):
    told = create(client, extra_body={"return_token_ids": True})
    assert len(told.token_ids) == told.usage.output_tokens
    tokens = {"input_ids": told.prompt_token_ids, "return_token_ids": True, "messages": None}
    again = create(client, extra_body=tokens)
    assert (again.content, again.token_ids) == (told.content, told.token_ids)


def test_a_message_tells_what_its_request_is_called_and_how_long_it_took(client):
    message = create(client, extra_headers={"anthropic-version": "2023-06-01"})
    assert message._request_id
    assert message.timings["queue_ms"] >= 0


def test_the_tokens_of_a_message_are_counted(client):
    counted = client.messages.count_tokens(model="tiny", messages=HELLO, system="French.")
    assert counted.input_tokens == len("[system]French.[user]hello[assistant]")


@pytest.fixture(scope="module")
def small(serve, write_script):
    """A client of a server with a small cache."""
    script = write_script([{"prompt_ids": [], "output": ""}], pool_tokens=1000)
    return anthropic_of(serve(script, {"chat": ChatOptions(chat_template=TEMPLATE)}))


class TestRetention:
    """`cache_control`: what is marked outlives what is not, in a small cache."""

    SHARED = "s" * 200
    MARKED = [{"type": "text", "text": SHARED, "cache_control": {"type": "ephemeral"}}]

    def fill(self, client):
        """Others use all of the cache, and more."""
        for letter in "abcdef":
            create(client, [{"role": "user", "content": letter * 300}], max_tokens=1)

    def read(self, client, text, system):
        """Tokens found in the cache, marked anew and others."""
        asked = [{"role": "user", "content": text}]
        usage = create(client, asked, system=system, max_tokens=1).usage
        counts = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        assert sum(counts) + usage.input_tokens == len(f"[system]{self.SHARED}[user]1[assistant]")
        return counts

    def test_what_is_marked_is_kept_under_pressure_and_what_is_not_is_evicted(self, small):
        beginning = len(f"[system]{self.SHARED}[user]")
        assert self.read(small, "1", self.SHARED) == (0, 0)
        self.fill(small)
        # Evicted: a page or two at most are left of it.
        found, created = self.read(small, "2", self.MARKED)
        assert found < 20
        assert found + created == beginning
        self.fill(small)
        found, created = self.read(small, "3", self.MARKED)
        assert found > beginning - 20
        assert found + created == beginning

    def test_it_gives_way_to_a_request_that_needs_its_room(self, small):
        self.read(small, "4", self.MARKED)
        create(small, [{"role": "user", "content": "z" * 900}], max_tokens=1)
        assert self.read(small, "5", self.SHARED)[0] < len(self.SHARED)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"temperature": -1}, "temperature"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, "prompt"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_not_served_is_refused_by_its_name(server, asked, named, streamed):
    body = {"model": "tiny", "max_tokens": 10, "messages": HELLO, "stream": streamed} | asked
    answer = server.post("/v1/messages", **body)
    told = answer.json()
    assert answer.status_code == 400
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert named in told["error"]["message"]


def test_errors_have_anthropics_shape_on_every_path(client, server):
    with pytest.raises(anthropic.NotFoundError) as caught:
        create(client, model="gpt")
    assert caught.value.body["error"]["type"] == "not_found_error"
    for answer, status, kind in (
        (server.http.get("/v1/messages"), 405, "invalid_request_error"),
        (server.http.get("/v1/messages/batches"), 404, "not_found_error"),
        (server.http.post("/v1/messages", content=b"x"), 400, "invalid_request_error"),
        (server.http.post("/v1/messages", content=b" " * (17 << 20)), 413, "request_too_large"),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
    # Elsewhere it is OpenAI's.
    assert "param" in server.http.get("/v1/nothing").json()["error"]


def test_a_key_is_wanted_where_the_server_has_some(serve, write_script):
    access = Access(make_ring([SECRET], None, None))
    limiter = Limiter(KeyLimits(requests=1))
    server = serve(write_script(RESPONSES), {"access": access, "limiter": limiter})
    with pytest.raises(anthropic.AuthenticationError) as caught:
        create(anthropic_of(server))
    assert caught.value.body["error"]["type"] == "authentication_error"
    client = anthropic_of(server, api_key=SECRET)
    assert create(client).content
    with pytest.raises(anthropic.RateLimitError) as caught:
        create(client)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) > 0


def test_a_server_that_has_ended_is_overloaded(serve, write_script):
    server = serve(write_script(RESPONSES))
    client = anthropic_of(server)
    server.frontend.end()
    with pytest.raises(anthropic.APIStatusError) as caught:
        create(client)
    assert caught.value.status_code == 529
    assert caught.value.body["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/v1/messages", b"{"),
        ("POST", "/v1/messages", b"{}"),
        ("POST", "/v1/messages/count_tokens", b"{}"),
        ("GET", "/v1/messages", None),
        ("POST", "/v1/messages/batches", b"{}"),
    ],
)
def test_a_refusal_names_the_request_too(server, method, path, content):
    answer = server.http.request(method, path, content=content)
    assert answer.status_code >= 400
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert answer.json()["type"] == "error"


def test_a_mark_in_the_result_of_a_tool_retains_it(client):
    text = {"type": "text", "text": "2", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text]}
    use = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    asked = [*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    made = client.messages.create(model="tiny", max_tokens=1, messages=asked)
    assert made.usage.cache_creation.ephemeral_1h_input_tokens > 0
