"""Sends malformed and random requests to every endpoint of a server, and judges the answers.

`python scripts/fuzz_http.py --seconds 300` does so to a server of its own, in processes of their
own, with a model that needs no weights; a test does so for some seconds. Each seed makes the same
requests. What must hold: only successes and the client's errors (4xx), errors in the form of the
path's API, a server that lives, no slot leaked, and memory that does not grow.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from phloem.server.background import running_server
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs

TIMEOUT = 60.0
"""Seconds for one answer; some junk is a legal request for much."""
ANTHROPIC = "/v1/messages"
_QUOTED = 300
"""Characters of a request or an answer that a report shows."""


class Raw(NamedTuple):
    """JSON, or what looks like it, as it is to be sent."""

    data: bytes


class Case(NamedTuple):
    """One request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.target[:_QUOTED]} {self.headers} {self.body[:_QUOTED]!r}"


_USER = {"role": "user", "content": "hello"}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
_FUNCTION = {"name": "f", "description": "d", "parameters": _SCHEMA, "strict": True}
_SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 3,
    "stop": ["zz"],
    "ignore_eos": False,
}
_COMMON = {
    **_SAMPLING,
    "n": 2,
    "min_tokens": 0,
    "logit_bias": {"5": 1.0},
    "presence_penalty": 0.1,
    "stream_options": {"include_usage": True},
    "stream": True,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}},
    "grammar_options": {"whitespace": "compact"},
    "stop_token_ids": [7],
    "cache_salt": "s",
    "priority": 0,
    "timeout": 30.0,
}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ],
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": "none",
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 4,
        "chat_template_kwargs": {"enable_thinking": False},
        **_COMMON,
    },
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 4, "logprobs": 2, **_COMMON},
    "/generate": {
        "text": ["a", "b"],
        "sampling_params": {"max_new_tokens": 4, "json_schema": "{}", **_SAMPLING},
        "return_logprob": True,
        "top_logprobs_num": 1,
        "logprob_start_len": 0,
        "rid": ["x", "y"],
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ],
        "instructions": "be brief",
        "max_output_tokens": 4,
        "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA, "strict": True}],
        "tool_choice": "none",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}},
        "metadata": {"a": "b"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
        "reasoning": {"summary": "auto"},
        "stream": True,
    },
    "/v1/responses/input_tokens": {"input": [{"type": "message", **_USER}]},
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}],
            },
        ],
        "tools": [{"name": "f", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "disabled"},
        "stop_sequences": ["zz"],
        "metadata": {"user_id": "u"},
        "stream": True,
    },
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [_USER], "system": "x"},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "float", "dimensions": 4},
    "/encode": {"text": ["a", "b"], "pooling": "last", "rid": ["x", "y"]},
    "/v1/grammar/check": {"json_schema": _SCHEMA, "backend": "auto"},
    "/tokenize": {"prompt": ["a", "b"], "return_token_strs": True},
    "/v1/tokenize": {"messages": [_USER], "add_generation_prompt": True},
    "/detokenize": {"tokens": [[5, 6], [7]]},
    "/v1/detokenize": {"tokens": [5], "skip_special_tokens": False},
    "/abort_request": {"rid": "chatcmpl-x"},
    "/pause_generation": {"mode": "in_place"},
    "/update_weight_version": {"new_version": "b"},
}
"""A request to each endpoint that takes one; what is sent differs from it in a few places."""

_DEEP = 100_000
JUNK: tuple[Raw, ...] = (
    *(Raw(text.encode()) for text in ("NaN", "-Infinity", "Infinity", "1e400", "-1e400", "1e308")),
    *(Raw(str(number).encode()) for number in (10**400, 2**63, -(2**63) - 1, 2**64, 2**31, -1)),
    *(Raw(text.encode()) for text in ("0", "-0.0", "1.5", "1e-400", "01", "1.", "+1", "0x1")),
    *(Raw(text.encode()) for text in ("null", "true", "false", "[]", "{}", '""', "undefined", "'")),
    *(Raw(text.encode()) for text in ('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x"')),
    *(Raw(data) for data in (b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\n"', b'"a')),
    *(Raw(text.encode()) for text in ("[null]", "[[]]", "[{}]", '[""]', "[-1]", "[1e400]", "[1,")),
    *(
        Raw(text.encode())
        for text in ('{"":{}}', '{"a":1,"a":2}', '{"a"}', '{"type":"x"}', "{1:2}")
    ),
    *(Raw(f'"{text}"'.encode()) for text in ("a" * 100_000, "\u202e\U0001f600" * 5_000, "\\n" * 9)),
    *(Raw(f'"{text}"'.encode()) for text in ("(a+)+$", "((((", "root ::= root", "{{ 1/0 }}", "%s")),
    Raw(b"[" * _DEEP + b"]" * _DEEP),
    Raw(b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
    Raw(b"[" * 900 + b"]" * 900),
    Raw(b'{"not":' * 300 + b"{}" + b"}" * 300),
    Raw(b"[" + b"1," * 50_000 + b"1]"),
    Raw(b"[" + b'"",' * 3_000 + b'""]'),
    Raw(b"{" + b",".join(b'"k%d":1' % key for key in range(5_000)) + b"}"),
    Raw(b'{"$ref":"#"}'),
    Raw(b'{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}'),
    Raw(b'{"type":"string","maxLength":1e9,"minLength":1000000000}'),
)
_IDS = (
    "x",
    "%",
    "%zz",
    "%00",
    "%ff%fe",
    "..%2f..%2fetc",
    "a" * 8_000,
    "%E2%80%AE",
    "resp_1",
    "a/b",
)
_VALUES = ("-1", "nan", "inf", "1e400", "", "%00", "%ff", "9" * 400, "x", "true", "0")
TARGETS = (
    *(f"/v1/responses/{id}" for id in _IDS),
    *(
        f"/v1/responses/{id}/input_items?limit={v}&order={v}&after={v}"
        for id in "xy"
        for v in _VALUES
    ),
    *(f"/v1/models/{id}" for id in _IDS),
    *(f"/flush_cache?timeout={value}" for value in _VALUES),
    *(f"/v1/responses/x?stream={value}" for value in _VALUES),
    *(f"/ui/{id}" for id in _IDS),
    *(f"/ui/api/node?id={value}" for value in _VALUES),
    *(f"/{id}" for id in _IDS),
    *("/metrics", "/server_info", "/openapi.json", "/docs", "/ui/api/snapshot", "/health", "//"),
    *("/v1/responses/x/cancel", "/continue_generation", "*", "/?" + "a" * 8_000),
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW")
HEADERS: tuple[Mapping[str, str], ...] = (
    {"Content-Type": "text/plain"},
    {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Type": "application/json; charset=utf-16"},
    {"Content-Encoding": "gzip"},
    {"X-Request-Id": "a" * 5_000},
    {"X-Request-Id": "\xff {{x}}"},
    {"Traceparent": "00-zz-zz-99"},
    {"Authorization": "Bearer " + "\xff" * 100},
    {"Authorization": "Basic \x01"},
    {"X-Api-Key": ""},
    {"Accept": "\xff/\xff"},
    {"Origin": "null"},
    {"If-None-Match": '"' * 1_000},
    {"X-Junk": "\x7f\xa0" * 1_000},
    {"Host": "\xff"},
)
WIRE = (
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1e9\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n{",
    b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"text": "a',
    b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{"text":"a"}',
    b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 5_000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n\x00\x01: \xff\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\r\n b: folded\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"GET /\xff\xfe\x80 HTTP/1.1\r\nHost: x\r\n\r\n",
)
"""What is sent as it is, before the client leaves."""


def encoded(value: Any) -> bytes:
    """`value` as JSON, with what is `Raw` in it as it is."""
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, dict):
        items = (json.dumps(key).encode() + b":" + encoded(each) for key, each in value.items())
        return b"{" + b",".join(items) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(encoded, value)) + b"]"
    return json.dumps(value).encode()


def replaced(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """`value` with `junk` at a place in it."""
    if not path:
        return junk
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, first: replaced(value.get(first), rest, junk)}
    return [replaced(each, rest, junk) if at == first else each for at, each in enumerate(value)]


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Where something is in a JSON value: the keys and indices that lead there."""
    yield ()
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, each in inner:
        for place in places(each):
            yield (key, *place)


def field_cases(fields: Mapping[str, list[str]]) -> Iterator[Case]:
    """Each of the junk values in each field that an endpoint knows, in turn.

    Args:
        fields: the names of the fields of each path's body.
    """
    for path, names in fields.items():
        for name in names:
            for junk in JUNK:
                yield _post(path, encoded({**_least(path), name: junk}))


def random_cases(seed: int) -> Iterator[Case]:
    """Requests that are wrong somewhere, without end."""
    chance = random.Random(seed)
    paths = sorted(BODIES)
    while True:
        kind = chance.random()
        path = chance.choice(paths)
        if kind < 0.75:
            yield _post(path, encoded(_mutated(chance, BODIES[path])))
        elif kind < 0.83:
            yield _post(path, _cut(chance, encoded(BODIES[path])))
        elif kind < 0.88:
            yield _post(path, encoded(_least(path)), chance.choice(HEADERS))
        elif kind < 0.91:
            yield Case(chance.choice(METHODS), path, {}, encoded(_least(path)))
        else:
            headers = chance.choice(HEADERS) if chance.random() < 0.2 else {}
            yield Case(chance.choice(METHODS), chance.choice(TARGETS), headers, b"")


def _mutated(chance: random.Random, body: Any) -> Any:
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        place = chance.choice([place for place in places(body) if place] or [()])
        body = replaced(body, place, chance.choice((*JUNK, body)))
    return body


def _cut(chance: random.Random, body: bytes) -> bytes:
    """A body with a byte changed or its end cut off."""
    at = chance.randrange(len(body))
    if chance.random() < 0.5:
        return body[:at]
    return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]


def _least(path: str) -> Mapping[str, Any]:
    """What a path's body needs, and an end to what it asks for."""
    wanted = ("messages", "prompt", "text", "input", "max_tokens", "model", "tokens", "json_schema")
    ends = ("sampling_params", "max_completion_tokens", "max_output_tokens", "rid", "mode")
    body = BODIES[path]
    return {name: body[name] for name in (*wanted, *ends, "new_version") if name in body}


def _post(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Case:
    return Case("POST", path, {"Content-Type": "application/json", **(headers or {})}, body)


class Answer(NamedTuple):
    """What came back."""

    status: int
    content_type: str
    body: bytes


def ask(url: str, case: Case) -> Answer:
    """Send a request and read the whole answer.

    Raises:
        OSError: there is none.
        HTTPException: it is no HTTP.
    """
    address = urlsplit(url)
    with closing(HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT)) as http:
        http.putrequest(
            case.method, case.target, skip_host="Host" in case.headers, skip_accept_encoding=True
        )
        for name, value in case.headers.items():
            http.putheader(name, value.encode("latin-1"))
        http.putheader("Content-Length", str(len(case.body)))
        http.endheaders(case.body)
        response = http.getresponse()
        return Answer(response.status, response.headers.get("Content-Type", ""), response.read())


def send_and_leave(url: str, data: bytes) -> bytes:
    """Send bytes, close that way, and read what comes back."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=TIMEOUT) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return b""  # it was refused before it was read


def complaint(case: Case, answer: Answer) -> str | None:
    """What is wrong with an answer, if anything is."""
    status = answer.status
    if status < 400:
        return None if status >= 200 else f"status {status}"
    if status >= 500 and not _is_wanted(case, answer):
        return f"status {status}"
    if case.method == "HEAD" or not case.target.startswith("/"):
        return None
    if not answer.content_type.startswith("application/json"):
        return f"an error of type {answer.content_type!r}"
    try:
        error = json.loads(answer.body)
    except ValueError:
        return "an error that is no JSON"
    path = case.target.partition("?")[0]
    anthropic = path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")
    wanted = {"type", "message"} if anthropic else {"type", "message", "param", "code"}
    if not isinstance(error, dict) or not wanted <= error.get("error", {}).keys():
        return "an error of another form"
    if "Traceback" in error["error"]["message"]:
        return "an error that shows a traceback"
    return None


def _is_wanted(case: Case, answer: Answer) -> bool:
    """Whether a 503 is what the request asked for: an end while it waits."""
    return answer.status == 503 and b"queue_timeout" in case.body


class Fuzzing:
    """Requests to one server, and what came of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.counts: Counter[int] = Counter()
        self.complaints: list[str] = []
        self.slowest: tuple[float, str] = (0.0, "")

    def fields(self) -> dict[str, list[str]]:
        """The names of the fields of each path's body, as the server describes them."""
        described = json.loads(ask(self.url, Case("GET", "/openapi.json", {}, b"")).body)
        found = {}
        for path in BODIES:
            content = described["paths"][path]["post"]["requestBody"]["content"]
            name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
            found[path] = list(described["components"]["schemas"][name]["properties"])
        return found

    def send(self, case: Case) -> None:
        """Send one request and judge its answer; what it stopped goes on."""
        begun = time.monotonic()
        try:
            answer = ask(self.url, case)
        except Exception as error:
            self.complaints.append(f"{error!r} for {case}")
            return
        took = time.monotonic() - begun
        self.slowest = max(self.slowest, (took, str(case)))
        self.counts[answer.status] += 1
        wrong = complaint(case, answer)
        if wrong is not None:
            self.complaints.append(f"{wrong}: {answer.body[:_QUOTED]!r} for {case}")
        if case.target == "/pause_generation" and answer.status == 200:
            ask(self.url, Case("POST", "/continue_generation", {}, b""))

    def send_wire(self) -> None:
        """Send what is hardly HTTP; its answer, if any, is a client's error or a success."""
        for data in WIRE:
            line = send_and_leave(self.url, data).partition(b"\r\n")[0]
            if line and not line.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")):
                self.complaints.append(f"{line!r} for {data[:_QUOTED]!r}")

    def leaked(self) -> dict[str, int]:
        """What is still held when nobody asks for anything."""
        end = time.monotonic() + TIMEOUT
        while True:
            answer = ask(self.url, Case("GET", "/server_info", {}, b""))
            state = json.loads(answer.body)["state"]
            held = {name: state[name] for name in ("running", "waiting", "used") if state[name]}
            if not held or time.monotonic() > end:
                return held


def resident_mib(process: psutil.Process) -> float:
    """Memory of a process and its children."""
    found = [process, *process.children(recursive=True)]
    return float(sum(each.memory_info().rss for each in found)) / 2**20


def write_script(folder: Path, tokenizer: str) -> str:
    """A model that needs no weights, for `--model`."""
    file = folder / "script.json"
    content = {
        "tokenizer": tokenizer,
        "context_length": 256,
        "responses": [{"prompt_ids": [], "output": "hello there, and so on. " * 60}],
    }
    file.write_text(json.dumps(content))
    return f"scripted:{file}"


def main() -> int:
    """Fuzz a server for a while and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of random requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", default="smollm2", help="a model whose tokenizer is used")
    parser.add_argument("--fields", action="store_true", help="first all junk in each field")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args = ServerArgs(model=write_script(Path(folder), options.tokenizer))
        with running_server(args, HttpArgs(port=0, served_model_name="tiny")) as server:
            fuzzing = Fuzzing(server.url)
            process = psutil.Process(server.process.pid)
            if options.fields:
                for case in field_cases(fuzzing.fields()):
                    fuzzing.send(case)
            fuzzing.send_wire()
            cases, memory = random_cases(options.seed), []
            for _ in range(4):
                end = time.monotonic() + options.seconds / 4
                while time.monotonic() < end:
                    fuzzing.send(next(cases))
                memory.append(resident_mib(process))
            fuzzing.send_wire()
            leaked, alive = fuzzing.leaked(), server.process.poll() is None
    print("statuses:", dict(sorted(fuzzing.counts.items())))
    print(f"slowest: {fuzzing.slowest[0]:.2f} s, {fuzzing.slowest[1]}")
    print("MiB after each quarter:", *(f"{each:.0f}" for each in memory))
    print("held at the end:", leaked or "nothing", "" if alive else "; the server has ended")
    for each in fuzzing.complaints:
        print("WRONG:", each)
    return 1 if fuzzing.complaints or leaked or not alive else 0


if __name__ == "__main__":
    sys.exit(main())
