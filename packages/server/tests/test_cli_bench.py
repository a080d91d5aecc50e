from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from phloem.server.bench import words

SPOKEN = (
    *(words.ARTICLES + words.ADJECTIVES + words.NOUNS + words.VERBS + words.PREPOSITIONS),
    *("lives", "near", "Write", "JSON", "object"),
)


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    """A vocabulary that holds the words of the prompts whole."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=5000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["".join(f" {word}" for word in SPOKEN)] * 3, trainer)
    file = tmp_path_factory.mktemp("words") / "tokenizer.json"
    backend.save(str(file))
    return file


@pytest.fixture
def server():
    """Streams `max_tokens` pieces to everybody; refuses schemas, as a server without grammars."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(200, json.dumps({"data": [{"id": "served"}]}).encode())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            if "response_format" in body:
                error = {"error": {"message": "response_format is not supported"}}
                self._send(400, json.dumps(error).encode())
            else:
                self._send(200, b"".join(stream(body)))

        def _send(self, status, content):
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

    httpd = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", asked
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def stream(body):
    tokens = body["max_tokens"]
    for i in range(tokens):
        finish = "length" if i + 1 == tokens else None
        choice = {"text": " x", "delta": {"content": " x"}, "finish_reason": finish}
        del choice["delta" if "prompt" in body else "text"]
        yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    usage = {"prompt_tokens": 10, "completion_tokens": tokens}
    yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def test_workloads_are_run_and_reported(phloem, server, tokenizer_file):
    url, asked = server
    done = phloem(
        *("bench", "serving", "--base-url", url, "--tokenizer", str(tokenizer_file)),
        *("--workloads", "w1,w4", "--reps", "2", "--seed", "3", "--json", "-"),
    )
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["settings"]["model"] == "served"
    assert report["settings"]["seed"] == 3
    assert "api_key" not in report["settings"]
    assert [run["output_tokens"] for run in report["runs"]["w1"]] == [640, 640]
    assert report["median"]["w4"]["output_tokens"] == 8 * 4 * 32
    assert report["median"]["w4"]["failed"] == 0
    assert {body["model"] for _, body in asked} == {"served"}
    # Eight of the warm-up come first.
    assert len(asked) == 8 + 2 * (5 + 32)
    assert "output tok/s" in done.err
    assert "w4" in done.err


def test_a_server_that_refuses_schemas_is_reported_and_no_crash(phloem, server, tokenizer_file):
    url, _ = server
    done = phloem(
        *("bench", "serving", "--base-url", url, "--tokenizer", str(tokenizer_file.parent)),
        *("--workloads", "w5", "--reps", "1", "--json", "-"),
    )
    assert done.code == 1
    figures = json.loads(done.out)["median"]["w5"]
    assert (figures["requests"], figures["failed"], figures["valid_json"]) == (16, 16, 0)
    assert "response_format is not supported (HTTP status 400)" in done.err


def test_options_reach_the_requests(phloem, server, tokenizer_file):
    url, asked = server
    done = phloem(
        *("bench", "serving", "--base-url", url, "--tokenizer", str(tokenizer_file)),
        *("--workloads", "w1", "--reps", "1", "--model", "mine", "--chat", "--no-ignore-eos"),
        *("--extra", '{"top_k": 1}', "--concurrency", "5"),
    )
    assert done.code == 0, done.err
    for path, body in asked:
        assert path == "/v1/chat/completions"
        assert (body["model"], body["top_k"], "ignore_eos" in body) == ("mine", 1, False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--workloads", "w1,w7"], "no workload 'w7'"),
        (["--extra", "[1]"], "extra '[1]' is no object"),
        (["--extra", "{"], "extra '{' is no JSON"),
        (["--reps", "0"], "--reps"),
        (["--tokenizer", "no-such-model"], "no-such-model"),
    ],
)
def test_a_bad_option_ends_with_2_before_anything_is_sent(
    phloem, server, tokenizer_file, options, says
):
    url, asked = server
    known = ["bench", "serving", "--base-url", url, "--tokenizer", str(tokenizer_file)]
    done = phloem(*known, *options)
    assert (done.code, asked) == (2, [])
    assert says in done.err


def test_a_server_that_is_not_there_ends_with_2(phloem, tokenizer_file):
    known = ["bench", "serving", "--base-url", "http://127.0.0.1:1"]
    assert "no server answers" in phloem(*known).err
    named = phloem(*known, "--model", "m", "--tokenizer", str(tokenizer_file))
    assert (named.code, "no request of the warm-up" in named.err) == (1, True)
