"""What a server says of itself when it is ready."""

from __future__ import annotations

import json
from dataclasses import replace

from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs
from phloem.server.messages import EngineFacts, Limits
from phloem.server.parsers.registry import Notation
from phloem.server.start_report import report_lines, start_report

FACTS = EngineFacts("cpu", "cpu", "int8", "float32", "int8", 360 << 20, 512, False)
LIMITS = Limits(8192, 8192, 49152, 32768)
ARGS = ServerArgs(model="/home/somebody/model", disk_cache="/home/somebody/kv")
HTTP = HttpArgs(api_key=("secret-1",), admin_api_key="secret-2", api_keys_file="/home/keys")
NOTATION = Notation("hermes", "qwen3")
ENDPOINTS = {"http": "http://127.0.0.1:1", "ui": "/ui", "metrics": "/metrics", "grpc": None}


def report(args=ARGS, http=HTTP):
    return start_report("tiny", args, http, LIMITS, FACTS, ENDPOINTS, NOTATION)


def test_what_was_left_to_the_machine_is_said_as_it_came_to_be():
    made = report()
    assert made["model"] == {
        "name": "tiny",
        "weights": "int8",
        "activations": "float32",
        "kernels": "cpu",
        "device": "cpu",
        "context": 8192,
    }
    cache, scheduling = made["kv_cache"], made["scheduling"]
    assert (cache["tokens"], cache["mib"], cache["dtype"]) == (32768, 360.0, "int8")
    assert (scheduling["policy"], scheduling["chunk"]) == ("lpm", 512)


def test_there_is_a_line_for_each_part():
    lines = report_lines(report())
    assert lines[1] == "chat        tool calls hermes, reasoning qwen3"
    assert len(lines) == len(report())
    assert lines[0].startswith("model       name tiny, weights int8, ")
    assert lines[5] == "access      keys yes, admin key yes, metrics key"
    assert lines[6] == "endpoints   http http://127.0.0.1:1, ui /ui, metrics /metrics, grpc none"


def test_without_keys_it_says_so():
    made = report(http=replace(HTTP, api_key=(), admin_api_key=None, api_keys_file=None))
    assert made["access"] == {"keys": False, "admin_key": False, "metrics": "key"}


def test_there_is_no_secret_and_no_path_in_it():
    assert not [word for word in ("secret", "/home") if word in json.dumps(report())]
