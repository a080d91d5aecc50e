"""The official `openai` client's `responses` against the server."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from pydantic import BaseModel

from phloem.server.http.chat_setup import ChatOptions

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
RESPONSES = [
    {"prompt": "[user]hello[assistant]", "output": "good day"},
    {"prompt": "[system]French.[user]hello[assistant]", "output": "bonjour"},
    {"prompt": "[user]hello[assistant]good day[user]again[assistant]", "output": "and again"},
    {"prompt": "[user]think[assistant]", "output": "<think>\nwell\n</think>\n\nyes"},
    {"prompt": "[user]sum[assistant]", "output": f"so:\n{CALL}"},
    {"prompt": "[user]sum[assistant]so:\n<add>[tool]2[assistant]", "output": "it is 2"},
]
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def server(serve, write_script):
    chat = ChatOptions(chat_template=TEMPLATE, tool_call_parser="hermes", reasoning_parser="qwen3")
    return serve(write_script(RESPONSES), {"chat": chat}, grammar_backend="fsm")


@pytest.fixture(scope="module")
def unthinking(serve, write_script):
    """A client of a model whose outputs have no notation."""
    return serve(write_script(RESPONSES), grammar_backend="fsm").openai()


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


def create(client, input="hello", **options):
    return client.responses.create(model="tiny", input=input, **{"temperature": 0} | options)


def test_a_text_is_answered_and_kept(client):
    made = create(client, metadata={"a": "b"})
    assert (made.object, made.status, made.model) == ("response", "completed", "tiny")
    assert made.output_text == "good day"
    assert made.id.startswith("resp_")
    assert made.metadata == {"a": "b"}
    assert made.usage.input_tokens == len("[user]hello[assistant]")
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert client.responses.retrieve(made.id) == made


def test_instructions_and_items_are_a_chat(client):
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    assert create(client, [item], instructions="French.").output_text == "bonjour"


def test_a_stream_is_the_whole_response(client):
    with client.responses.stream(model="tiny", input="hello", temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == "good day"
    assert len(deltas) > 1
    assert [event.sequence_number for event in events] == list(range(len(events)))
    whole = create(client)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert client.responses.retrieve(final.id).output_text == "good day"


def test_a_response_goes_on_from_another(client):
    first = create(client)
    second = create(client, "again", previous_response_id=first.id)
    assert second.output_text == "and again"
    assert second.previous_response_id == first.id
    # Its own input alone is its input.
    (item,) = client.responses.input_items.list(second.id)
    assert item.content[0].text == "again"


def test_reasoning_is_an_item_streamed_or_not(client):
    whole = create(client, "think")
    thought, message = whole.output
    assert (thought.type, thought.content[0].text.strip()) == ("reasoning", "well")
    assert message.content[0].text == "yes"
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    events = list(create(client, "think", stream=True, reasoning={"summary": "auto"}))
    told = [e.delta for e in events if e.type == "response.reasoning_summary_text.delta"]
    assert "".join(told) == events[-1].response.output[0].summary[0].text
    assert "well" in "".join(told)


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_is_called_and_its_result_goes_back(client, stream):
    made = create(client, "sum", tools=[ADD], stream=stream)
    if stream:
        events = list(made)
        made = events[-1].response
        parts = [e for e in events if e.type == "response.function_call_arguments.delta"]
        assert "".join(part.delta for part in parts) == made.output[1].arguments
    call = made.output[1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    items = [{"role": "user", "content": "sum"}, *made.output, result]
    assert create(client, items, tools=[ADD]).output_text == "it is 2"
    going_on = create(client, [result], tools=[ADD], previous_response_id=made.id)
    assert going_on.output_text == "it is 2"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_a_call_is_made_sure_of(unthinking, choice):
    asked = {"tools": [ADD], "tool_choice": choice, "parallel_tool_calls": False}
    made = create(unthinking, max_output_tokens=100, **asked)
    (call,) = made.output
    assert json.loads(call.arguments) == {"a": 1}
    assert made.tools[0].name == "add"


class Word(BaseModel):
    word: str


def test_structured_outputs_are_parsed(unthinking):
    parsed = unthinking.responses.parse(
        model="tiny", input="hello", text_format=Word, temperature=0, max_output_tokens=200
    )
    assert isinstance(parsed.output_parsed, Word)
    assert parsed.text.format.name == "Word"


def test_what_is_cut_is_incomplete_streamed_or_not(client):
    made = create(client, max_output_tokens=3)
    assert made.status == made.output[0].status == "incomplete"
    assert made.incomplete_details.reason == "max_output_tokens"
    last = list(create(client, max_output_tokens=3, stream=True))[-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", "goo")


def test_logprobs_come_with_the_text(client):
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    text = create(client, **asked).output[0].content[0]
    assert "".join(entry.token for entry in text.logprobs) == "good day"
    deltas = [e for e in create(client, stream=True, **asked) if e.type.endswith("text.delta")]
    assert [e.logprobs[0].token for e in deltas] == list("good day")


def test_tokens_go_in_and_come_out(client, unthinking):
    for each in (client, unthinking):
        told = create(each, extra_body={"return_token_ids": True})
        assert len(told.token_ids) == told.usage.output_tokens
        tokens = {"input_ids": told.prompt_token_ids, "return_token_ids": True}
        again = each.responses.create(model="tiny", temperature=0, extra_body=tokens)
        assert (again.output_text, again.token_ids) == (told.output_text, told.token_ids)
        last = list(create(each, stream=True, extra_body={"return_token_ids": True}))[-1]
        assert last.response.token_ids == told.token_ids
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, instructions="French.", input=openai.omit, extra_body=tokens)
    assert caught.value.param == "input_ids"


def test_a_response_that_is_not_stored_or_was_deleted_is_not_there(client):
    for made in (create(client, store=False), create(client)):
        if made.store:
            client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match=made.id):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError) as caught:
            create(client, previous_response_id=made.id)
        assert caught.value.param == "previous_response_id"


def test_a_response_is_not_there_for_another_key(client, server):
    made = create(client)
    other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0)
    for use in (
        other.responses.retrieve,
        other.responses.delete,
        other.responses.cancel,
        lambda id: other.responses.input_items.list(id),
        lambda id: create(other, previous_response_id=id),
    ):
        with pytest.raises(openai.NotFoundError):
            use(made.id)
    assert client.responses.retrieve(made.id) == made


def test_input_items_come_in_pages(client):
    said = ["one", "two", "three"]
    made = create(client, [{"role": "user", "content": text} for text in said], max_output_tokens=1)
    pages = client.responses.input_items.list(made.id, limit=2, order="asc")
    assert pages.has_more
    assert [item.content[0].text for item in pages] == said
    newest = client.responses.input_items.list(made.id)
    assert [item.content[0].text for item in newest.data] == said[::-1]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_items.list(made.id, limit=0)
    assert caught.value.param == "limit"


def test_input_items_have_ids_of_their_own_whatever_the_client_calls_them(client):
    ids = ["same", "same", {"a": [1]}, 7, ""]
    items = [{"role": "user", "content": str(i), "id": id} for i, id in enumerate(ids)]
    made = create(client, items, max_output_tokens=1)
    listed = list(client.responses.input_items.list(made.id, limit=1, order="asc"))
    assert [item.content[0].text for item in listed] == ["0", "1", "2", "3", "4"]
    assert listed[0].id == "same"
    assert len({item.id for item in listed}) == 5
    assert all(item.id.startswith("msg_") for item in listed[1:])


def test_only_what_runs_in_the_background_is_cancelled(client):
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(create(client).id)


def test_the_tokens_of_an_input_are_counted(client):
    counted = client.responses.input_tokens.count(model="tiny", input="hello")
    assert counted.input_tokens == len("[user]hello[assistant]")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "text.format"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": []}, "input"),
        ({"input": "x" * 200_000}, "input"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"input": None}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_served_is_refused_by_its_name(server, asked, param, stream):
    answer = server.post("/v1/responses", **{"model": "tiny", "input": "hi"} | asked, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error["message"]


def test_a_client_that_leaves_ends_its_response(server):
    with server.http.stream(
        "POST",
        "/v1/responses",
        json={"input": "hello", "stream": True, "ignore_eos": True, "max_output_tokens": 4000},
    ) as stream:
        next(stream.iter_lines())
    for _ in range(200):
        state = httpx.get(f"{server.url}/server_info").json()
        if not server.frontend.running:
            break
    assert not server.frontend.running, state


def test_a_response_that_was_cut_inside_a_call_is_gone_on_from(client):
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": '}
    asked = [{"role": "user", "content": "hello"}, call | {"status": "incomplete"}]
    assert create(client, asked, max_output_tokens=1).usage.output_tokens == 1


def test_an_item_is_named_as_the_client_counts_it(client):
    first = create(client, max_output_tokens=1)
    items = [{"role": "user", "content": "x"}, {"role": "user", "content": 5}]
    with pytest.raises(openai.BadRequestError, match="the content of item 1 of input is no text"):
        create(client, items, previous_response_id=first.id)
