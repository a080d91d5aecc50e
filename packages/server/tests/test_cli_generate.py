from __future__ import annotations

import json
import threading

import pytest


def test_a_single_prompt_streams_and_shows_its_figures_apart(phloem):
    done = phloem("generate", "hi", "--temperature", "0", "--stop", "a", "--stop", "b")
    assert done.out == "<hi>!\n"
    assert "3 tokens, 20.0 tokens/s" in done.err
    assert "2 of 4 prompt tokens cached" in done.err
    assert done.engine.asked == [("hi", {"temperature": 0.0, "stop": ("a", "b")})]


def test_several_prompts_come_out_in_their_order(phloem, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("two\n\n   \nthree\n")
    done = phloem("generate", "one", "--file", str(file))
    assert done.out == ">>> one\n<one>!\n\n>>> two\n<two>!\n\n>>> three\n<three>!\n\n"


def test_what_is_piped_in_is_read_a_prompt_a_line(phloem):
    assert (
        phloem("generate", stdin="two\nthree\n").out == ">>> two\n<two>!\n\n>>> three\n<three>!\n\n"
    )


def test_prompts_are_in_flight_together(phloem):
    """Each waits for the other: one after the other they would never end."""
    meeting = threading.Barrier(2, timeout=30)

    def answer(given):
        meeting.wait()
        return [given]

    assert phloem("generate", "a", "b", answer=answer).code == 0


def test_json_output_is_a_line_for_each_prompt(phloem):
    lines = phloem("generate", "a", "b", "--json").out.splitlines()
    assert [(r["prompt"], r["text"]) for r in map(json.loads, lines)] == [
        ("a", "<a>!"),
        ("b", "<b>!"),
    ]


def test_jsonl_takes_prompts_messages_and_ids_with_their_own_parameters(phloem, tmp_path):
    records = [
        {"id": 7, "prompt": "p", "sampling_params": {"top_k": 3}},
        {"messages": [{"role": "user", "content": "m"}]},
        {"input_ids": [1, 2]},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    done = phloem("generate", "--jsonl", str(source), "--output", str(target), "--seed", "1")
    assert (done.code, done.out) == (0, "")
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert [r["text"] for r in results] == ["<p>!", "<['m']>!", "<[1, 2]>!"]
    assert results[0]["id"] == 7
    assert results[0]["output_ids"] == [1, 2]
    assert results[1]["messages"] == records[1]["messages"]
    assert ("p", {"seed": 1, "top_k": 3}) in done.engine.asked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 of the JSONL: "),
        ("[]", "line 2 of the JSONL: it holds a list"),
        ("{}", "line 2 of the JSONL: it has no input"),
        ('{"prompt": "a", "input_ids": [1]}', "it has prompt and input_ids"),
        ('{"prompt": "a", "sampling_params": 1}', "sampling_params is a int"),
        ('{"prompt": "a", "sampling_params": {"top_k": 0}}', "top_k is 0"),
        ('{"prompt": "a", "sampling_params": {"x": 0}}', "unknown sampling parameter 'x'"),
    ],
)
def test_a_bad_line_is_named_before_an_engine_starts(phloem, tmp_path, line, says):
    source = tmp_path / "in.jsonl"
    source.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    done = phloem("generate", "--jsonl", str(source))
    assert (done.code, done.engine) == (2, None)
    assert says in done.err


def test_no_prompt_at_all_is_a_usage_error(phloem):
    done = phloem("generate")
    assert (done.code, "there is no prompt" in done.err) == (2, True)


def test_a_prompt_that_fails_harms_only_itself(phloem):
    def answer(given):
        return ValueError("too long") if given == "bad" else [given]

    done = phloem("generate", "good", "bad", "fine", "--json", answer=answer)
    results = [json.loads(line) for line in done.out.splitlines()]
    assert [r.get("text") for r in results] == ["good", None, "fine"]
    assert results[1]["error"] == "too long"
    assert (done.code, "1 of 3 prompts failed" in done.err) == (1, True)


def test_a_single_prompt_that_is_refused_ends_with_2(phloem):
    done = phloem("generate", "bad", answer=lambda given: ValueError("too long"))
    assert (done.code, "too long" in done.err) == (2, True)


def test_a_request_that_ends_with_an_error_is_a_failure(phloem):
    finish = {"finish": "error", "message": "NaN in the logits"}
    single = phloem("generate", "x", finish=finish)
    assert (single.code, "NaN in the logits" in single.err) == (1, True)
    several = phloem("generate", "x", "y", finish=finish)
    assert (several.code, several.out.count("[error: NaN in the logits]")) == (1, 2)
