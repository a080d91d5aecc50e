import math

import pytest
import torch

from phloem.kernels import RopeConfig, cos_sin, inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_both_forms_of_a_rope_config_are_read_alike():
    new = RopeConfig.from_hf({"rope_parameters": LLAMA3})
    scaling = {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    assert RopeConfig.from_hf({"rope_theta": 500000.0, "rope_scaling": scaling}) == new
    assert new == RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)


def test_a_config_without_rope_settings_takes_the_defaults():
    assert RopeConfig.from_hf({}) == RopeConfig(10000.0)
    assert RopeConfig.from_hf({"rope_scaling": None, "rope_theta": 5e4}) == RopeConfig(5e4)
    old = {"rope_scaling": {"type": "linear", "factor": 4.0}}
    assert RopeConfig.from_hf(old) == RopeConfig(10000.0, "linear", 4.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "default, linear, llama3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5 in .* only 1.0"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "must be above"),
        ({"rope_parameters": {"rope_type": 5}}, "rope type 5 is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        RopeConfig.from_hf(config)


@pytest.mark.parametrize(
    ("config", "setting", "value"),
    [
        ({"rope_theta": 0}, "rope_theta", "0"),
        ({"rope_theta": -1.0}, "rope_theta", "-1.0"),
        ({"rope_theta": "10000"}, "rope_theta", "'10000'"),
        ({"rope_theta": True}, "rope_theta", "True"),
        ({"rope_theta": math.nan}, "rope_theta", "nan"),
        ({"rope_theta": math.inf}, "rope_theta", "inf"),
        ({"rope_theta": 10**400}, "rope_theta", "10+"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": []}}, "rope_theta", r"\[\]"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor", "0"),
        ({"rope_scaling": "yarn"}, "rope_scaling", "'yarn'"),
        ({"rope_scaling": ""}, "rope_scaling", "''"),
        ({"rope_parameters": [1]}, "rope_parameters", r"\[1\]"),
        ({"rope_scaling": {"type": "linear"}}, "factor", "missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor", "0"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor", "'2'"),
        ({"rope_parameters": LLAMA3 | {"factor": None}}, "factor", "missing"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": -1}}, "low_freq_factor", "-1"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": {}}}, "high_freq_factor", "{}"),
        (
            {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 0.5}},
            "original_max_position_embeddings",
            "0.5",
        ),
    ],
)
def test_a_setting_of_a_wrong_type_or_range_is_named_with_its_value(config, setting, value):
    rule = rf"\b{setting} is {value} in the model's config\.json: it must be "
    with pytest.raises(ValueError, match=rule):
        RopeConfig.from_hf(config)


def test_settings_that_are_null_or_of_another_rope_type_do_not_count():
    nulls = {"rope_theta": None, "rope_parameters": {"rope_theta": None, "rope_type": None}}
    assert RopeConfig.from_hf(nulls) == RopeConfig()
    unused = {"rope_theta": 5e4, "rope_parameters": {}, "rope_scaling": {"factor": 2.0}}
    assert RopeConfig.from_hf(unused) == RopeConfig(5e4)


def test_an_odd_head_dim_is_refused():
    with pytest.raises(ValueError, match="head_dim 5"):
        inverse_frequencies(RopeConfig(), 5)


def test_linear_scaling_stretches_positions():
    plain = inverse_frequencies(RopeConfig(), 16)
    stretched = inverse_frequencies(RopeConfig(type="linear", factor=4.0), 16)
    positions = torch.arange(0, 40, 4)
    torch.testing.assert_close(cos_sin(positions, stretched), cos_sin(positions // 4, plain))


def test_llama3_scaling_follows_the_published_formula():
    rope = RopeConfig.from_hf({"rope_parameters": LLAMA3})
    for i, frequency in enumerate(inverse_frequencies(rope, 128).tolist()):
        base = 500000.0 ** (-2 * i / 128)
        wavelength = 2 * math.pi / base
        if wavelength < 8192 / 4.0:
            expected = base
        elif wavelength > 8192 / 1.0:
            expected = base / 8.0
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            expected = (1 - smooth) * base / 8.0 + smooth * base
        assert frequency == pytest.approx(expected, rel=1e-5)
