"""`phloem batch` as a process: killed and resumed, interrupted, and against a server."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter

import pytest

from phloem.server.children import main_of

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"


def line(custom_id, url, **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def requests(count):
    """As many, of each kind in turn; some are refused."""
    for i in range(count):
        yield (
            line(f"chat-{i}", CHAT, messages=[{"role": "user", "content": f"{i}"}], max_tokens=40),
            line(f"text-{i}", COMPLETION, prompt=f"{i}", max_tokens=40, logprobs=1),
            line(f"vector-{i}", EMBEDDING, input=f"text {i}"),
            line(f"refused-{i}", COMPLETION, prompt=f"{i}", temperature=-1),
        )[i % 4]


def write(path, lines):
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def results(path):
    return [json.loads(each) for each in path.read_text().splitlines()]


VARYING = ("id", "created", "system_fingerprint", "timings")


def stable(result):
    """What two answers to one request have alike."""
    body = {k: v for k, v in result["response"]["body"].items() if k not in VARYING}
    body.get("usage", {}).pop("prompt_tokens_details", None)
    return result["custom_id"], result["response"]["status_code"], body


def command(*args):
    return [*main_of("phloem.server.cli"), "batch", *map(str, args)]


def run(*args):
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=60)


def started(path, *args, lines):
    """A run that has written so many lines, and is at work."""
    process = subprocess.Popen(
        command(*args), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.stderr.read()
    return process


@pytest.fixture(scope="module")
def script(write_script):
    responses = [{"prompt_ids": [], "output": "x" * 20_000}]
    return write_script(responses, context_length=30_000, pool_tokens=200_000)


@pytest.fixture(scope="module")
def server(serve, script):
    return serve(script)


def test_a_run_that_is_killed_goes_on_without_losing_or_repeating_a_line(script, server, tmp_path):
    given = list(requests(80))
    source, target = write(tmp_path / "in.jsonl", given), tmp_path / "out.jsonl"
    flags = ("--model", script, "--served-model-name", "tiny", "--concurrency", "2")
    process = started(target, source, target, *flags, lines=8)
    process.kill()
    process.communicate()
    killed = target.read_bytes()
    assert 8 <= killed.count(b"\n") < 80
    with target.open("ab") as file:
        file.write(killed[:80])
    done = run(source, target, *flags)
    assert done.returncode == 3, done.stderr
    assert "80 of 80 lines have results, 20 of them errors" in done.stderr
    assert target.read_bytes().startswith(killed)
    after = results(target)
    assert Counter(r["custom_id"] for r in after) == Counter(each["custom_id"] for each in given)

    over_http = tmp_path / "server.jsonl"
    against = run(source, over_http, "--server", server.url)
    assert against.returncode == 3, against.stderr
    by_id = {r["custom_id"]: r for r in after}
    for result in results(over_http):
        assert stable(result) == stable(by_id[result["custom_id"]])
    assert {r["response"]["status_code"] for r in after} == {200, 400}


def test_an_interrupted_run_ends_at_once_and_says_what_is_left(script, tmp_path):
    first = line("first", COMPLETION, prompt="a", max_tokens=2)
    endless = {"prompt": "a", "max_tokens": 19_000, "ignore_eos": True}
    others = [line(f"other-{i}", COMPLETION, **endless) for i in range(49)]
    source = write(tmp_path / "in", [first, *others])
    target = tmp_path / "out"
    process = started(target, source, target, "--model", script, "--concurrency", "1", lines=1)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "of 50 lines have no result yet: the same command goes on" in error
    assert "Traceback" not in error
    assert all(r["response"]["status_code"] == 200 for r in results(target))


def test_lines_that_are_no_requests_have_their_errors(server, tmp_path):
    source = write(tmp_path / "in", [line("a", RESPONSES, input="a", max_output_tokens=2)])
    with source.open("a") as file:
        file.write("{broken\n\n")
        file.write(json.dumps(line("b", "/v1/files")) + "\n")
    target = tmp_path / "out"
    done = run(source, target, "--server", server.url)
    assert done.returncode == 3
    assert "3 of 3 lines have results, 2 of them errors" in done.stderr
    broken, unknown = (r for r in results(target) if r["error"])
    assert (broken["custom_id"], broken["error"]["line"]) == (None, 2)
    assert (unknown["custom_id"], unknown["error"]["code"]) == ("b", "invalid_line")
