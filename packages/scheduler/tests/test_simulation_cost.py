"""The cost model: its formula, its JSON form, its presets."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.scheduler.simulation import PRESETS, CostModel, load_cost_model, roofline

MODEL = CostModel(0.01, 1e-5, 1e-9, 2e-4, 3e-8)


def seconds(*rows):
    """Of a step with rows of (query tokens, tokens after it)."""
    queries, lengths = np.array(rows, np.int32).T
    return MODEL.seconds(queries, lengths)


def test_a_prefill_costs_its_tokens_and_what_each_attends_to():
    # Tokens 4, 5 and 6 attend to 5, 6 and 7 tokens, themselves counted.
    assert seconds((3, 7)) == pytest.approx(0.01 + 3e-5 + (5 + 6 + 7) * 1e-9)


def test_decodes_cost_their_rows_and_their_context():
    assert seconds((1, 7), (1, 30)) == pytest.approx(0.01 + 2 * 2e-4 + 37 * 3e-8)


def test_a_mixed_step_costs_both_and_one_step():
    assert seconds((3, 7), (1, 30)) == pytest.approx(seconds((3, 7)) + seconds((1, 30)) - 0.01)


@given(st.lists(st.integers(2, 5000), min_size=1, max_size=9), st.integers(1, 50))
def test_a_run_of_decodes_costs_exactly_what_its_steps_do(lengths, steps):
    lengths = np.array(lengths, np.int32)
    ones = np.ones(len(lengths), np.int32)
    singly = [MODEL.seconds(ones, lengths + i) for i in range(steps)]
    run = MODEL.decode_seconds(len(lengths), int(lengths.sum()), steps)
    assert run.tolist() == singly


def test_a_model_comes_back_from_its_file(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(MODEL.as_dict()))
    assert load_cost_model(str(path)) == MODEL
    path.write_text(json.dumps({"cost_model": MODEL.as_dict(), "mean_error": 0.1}))
    assert load_cost_model(str(path)) == MODEL


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "has no cost model"),
        ("[]", "has no cost model"),
        ("{}", "step is needed"),
        ('{"step": 0}', "step is 0"),
        ('{"step": 1, "decode": 1}', "'decode' is unknown"),
        ('{"step": 1, "decode_row": -1}', "decode_row is -1"),
        ('{"step": 1, "decode_row": "1"}', "decode_row is '1'"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, says):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        load_cost_model(str(path))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no cost model 'a200'.*h100-8b"):
        load_cost_model("a200")


def test_presets_have_names_and_their_steps_take_milliseconds():
    for name, model in PRESETS.items():
        assert load_cost_model(name) == model
        assert 1e-3 < model.step < 1.0


def test_a_faster_memory_shortens_steps_and_a_faster_chip_prefills():
    data = {"parameters": 8e9, "layers": 32, "width": 4096, "kv_width": 1024}
    data["bytes_per_value"] = 2.0
    slow = roofline(**data, flops=1e14, bandwidth=1e12)
    fast = roofline(**data, flops=2e14, bandwidth=2e12)
    assert fast.step < slow.step
    assert fast.prefill_token == pytest.approx(slow.prefill_token / 2)
    assert fast.decode_context == pytest.approx(slow.decode_context / 2)
