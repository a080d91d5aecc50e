"""`phloem bench serving` against a real server, and its prompts by a real tokenizer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from phloem.server.background import running_server
from phloem.server.bench.workloads import WORKLOADS, TextMaker, build
from phloem.server.cli import main
from phloem.server.config import ServerArgs
from phloem.server.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def make(smollm2):
    tokenizer = Tokenizer.from_folder(smollm2)
    return TextMaker(lambda text: tokenizer.encode(text, add_special_tokens=False), 0)


def first_turns(make, name):
    return [make.encode(c.turns[0]) for c in build(name, make, 0).conversations]


@pytest.mark.parametrize(("name", "tokens"), [("w1", 128), ("w2", 256), ("w3", 1088), ("w4", 64)])
def test_prompts_have_their_length_in_tokens_of_the_model(make, name, tokens):
    assert {len(prompt) for prompt in first_turns(make, name)} == {tokens}


def test_prompts_of_one_prefix_share_exactly_its_tokens(make):
    prompts = first_turns(make, "w3")
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 1
    assert len({tuple(prompt[:1040]) for prompt in prompts}) == 64


def test_a_next_turn_leaves_the_tokens_of_the_turns_before(make):
    for conversation in build("w4", make, 0).conversations:
        said, ids = "", []
        for turn in conversation.turns:
            said, ids = said + turn, ids + list(make.encode(turn))
            assert list(make.encode(said)) == ids


def measured(make, folder, *options, **engine_options):
    """What the benchmark reports of a server with a model that always says the same."""
    script = {"responses": [{"prompt_ids": [], "output_ids": list(make.encode(make.text(2048)))}]}
    (folder / "script.json").write_text(json.dumps(script))
    args = ServerArgs(model=f"scripted:{folder / 'script.json'}", **engine_options)
    with running_server(args) as server:
        done = CliRunner().invoke(
            main,
            [
                *("bench", "serving", "--base-url", server.url, "--tokenizer", "smollm2"),
                *("--reps", "1", "--json", str(folder / "report.json"), *options),
            ],
        )
    return done, json.loads((folder / "report.json").read_text())["median"]


@pytest.fixture(scope="module")
def report(make, tmp_path_factory):
    return measured(make, tmp_path_factory.mktemp("bench"))


def test_every_workload_is_reported(report):
    done, median = report
    assert list(median) == ["w1", "w2", "w3", "w3warm", "w4", "w5"]
    for name in (*WORKLOADS, "w3warm"):
        assert name in done.stderr


@pytest.mark.parametrize(
    ("name", "requests", "prompt", "output"),
    [
        ("w1", 5, 5 * 128, 5 * 128),
        ("w2", 32, 32 * 256, 32 * 64),
        ("w3", 64, 64 * 1088, 64 * 32),
        ("w3warm", 64, 64 * 1088, 64 * 32),
        # A turn's prompt has the earlier turns and their answers.
        ("w4", 32, 8 * (64 + 160 + 256 + 352), 32 * 32),
    ],
)
def test_figures_count_all_requests_and_tokens(report, name, requests, prompt, output):
    figures = report[1][name]
    assert (figures["requests"], figures["failed"]) == (requests, 0)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (prompt, output)
    assert figures["output_tokens_per_s"] == pytest.approx(output / figures["wall_s"])
    assert figures["total_tokens_per_s"] == pytest.approx((prompt + output) / figures["wall_s"])
    assert 0 < figures["ttft_p50_ms"] <= figures["ttft_p99_ms"]
    assert 0 <= figures["itl_p50_ms"] <= figures["itl_p99_ms"]
    assert figures["tpot_p50_ms"] > 0


def test_cached_tokens_show_what_the_workloads_are_for(report):
    cached = {name: figures.get("cached_tokens") for name, figures in report[1].items()}
    # Of a prompt that was seen before, all but the token that must be computed.
    assert cached["w3warm"] == 64 * 1087
    # All requests but those of the first batch find the prefix.
    assert cached["w3"] >= 48 * 1024
    # Each turn finds the one before it, and its answer but for the last token.
    assert cached["w4"] >= 8 * (95 + 191 + 287)
    assert cached["w1"] < 5 * 16


def test_answers_by_a_schema_are_all_valid_and_none_is_cut(report):
    figures = report[1]["w5"]
    assert (figures["requests"], figures["failed"]) == (16, 0)
    assert (figures["valid_json"], figures["cut_by_length"]) == (1, 0)


def test_a_workload_that_the_server_cannot_do_is_failed_requests(make, tmp_path):
    done, median = measured(make, tmp_path, "--workloads", "w5", grammar_backend="none")
    assert done.exit_code == 1
    assert (median["w5"]["requests"], median["w5"]["failed"]) == (16, 16)
    assert "response_format" in median["w5"]["first_error"]
    assert "response_format" in done.stderr
