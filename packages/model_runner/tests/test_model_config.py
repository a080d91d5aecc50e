import json
import re
import subprocess
import sys

import pytest

from phloem.kernels import RopeConfig
from phloem.model_runner import ModelConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}


def test_what_a_config_leaves_out_takes_the_defaults_of_llama():
    config = ModelConfig.from_dicts(LLAMA, {})
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (4, 16, 1e-6)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (False, False, False)
    assert config.rope == RopeConfig()
    assert not config.tie_word_embeddings
    assert config.eos_token_ids == (2,)


def test_the_old_and_the_new_form_of_a_config_are_read_alike():
    old = LLAMA | {"rope_theta": 5e5, "torch_dtype": "bfloat16"}
    new = LLAMA | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        "dtype": "bfloat16",
    }
    assert ModelConfig.from_dicts(old, {}) == ModelConfig.from_dicts(new, {})
    assert ModelConfig.from_dicts(old, {}).dtype == "bfloat16"


def test_the_generation_config_decides_what_ends_a_text():
    assert ModelConfig.from_dicts(LLAMA, {"eos_token_id": [7, 8]}).eos_token_ids == (7, 8)
    assert ModelConfig.from_dicts(LLAMA, {"eos_token_id": 9}).eos_token_ids == (9,)
    assert ModelConfig.from_dicts(LLAMA | {"eos_token_id": None}, {}).eos_token_ids == ()


def test_biases_follow_the_architecture():
    qwen = ModelConfig.from_dicts(
        LLAMA
        | {
            "architectures": ["Qwen2ForCausalLM"],
            "sliding_window": 4096,
            "use_sliding_window": False,
        },
        {},
    )
    assert (qwen.qkv_bias, qwen.output_bias) == (True, False)
    llama = ModelConfig.from_dicts(LLAMA | {"attention_bias": True}, {})
    assert (llama.qkv_bias, llama.output_bias) == (True, True)


def test_a_config_without_architectures_is_known_by_its_model_type():
    unnamed = {k: v for k, v in LLAMA.items() if k != "architectures"} | {"model_type": "llama"}
    assert ModelConfig.from_dicts(unnamed, {}).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "GPT2LMHeadModel is not supported: supported are Ll",
        ),
        ({"architectures": None, "model_type": "t5"}, "architecture t5 is not supported"),
        ({"hidden_act": "gelu"}, r"hidden_act is 'gelu' in .*config\.json: only 'silu'"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 4096},
            r"sliding_window is 4096 in .*config\.json: only models that attend to",
        ),
        ({"quantization_config": {"bits": 4}}, "quantized by None to 4 bits"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope type 'yarn' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_name(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dicts(LLAMA | change, {})


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@pytest.mark.parametrize("value", [0, -4, "2", 2.0, True, [2], 2**31])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_no_positive_whole_number_is_refused(name, value):
    says = f"{name} is {value!r} in the model's config.json: it must be a whole number from 1"
    with pytest.raises(ValueError, match=re.escape(says)):
        ModelConfig.from_dicts(LLAMA | {name: value}, {})


@pytest.mark.parametrize("name", [name for name in SIZES if name in LLAMA])
def test_a_size_that_is_required_is_named_when_it_is_left_out_or_null(name):
    rest = {key: value for key, value in LLAMA.items() if key != name}
    with pytest.raises(ValueError, match=rf"{name} is missing in the model's config\.json"):
        ModelConfig.from_dicts(rest, {})
    with pytest.raises(ValueError, match=rf"{name} is None in the model's config\.json"):
        ModelConfig.from_dicts(LLAMA | {name: None}, {})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("num_key_value_heads", 3, "it must divide num_attention_heads, which is 4"),
        ("num_key_value_heads", 8, "it must divide num_attention_heads, which is 4"),
        ("head_dim", 15, "it must be even"),
        ("hidden_size", 60, "without a head_dim it must be an even multiple"),
        ("hidden_size", 2, "without a head_dim it must be an even multiple"),
        ("rms_norm_eps", None, "it must be a number above 0"),
        ("rms_norm_eps", -1, "it must be a number above 0"),
        ("rms_norm_eps", 0, "it must be a number above 0"),
        ("rms_norm_eps", "1e-6", "it must be a number above 0"),
        ("rms_norm_eps", True, "it must be a number above 0"),
        ("rms_norm_eps", float("nan"), "it must be a number above 0"),
        ("rms_norm_eps", float("inf"), "it must be a number above 0"),
        ("rms_norm_eps", 10**400, "it must be a number above 0"),
        ("tie_word_embeddings", "false", "it must be true or false"),
        ("attention_bias", 1, "it must be true or false"),
        ("mlp_bias", [], "it must be true or false"),
        ("use_sliding_window", "no", "it must be true or false"),
        ("bos_token_id", "1", "it must be a token id from 0 to 99"),
        ("bos_token_id", [1], "it must be a token id from 0 to 99"),
        ("eos_token_id", "2", "it must be a token id from 0 to 99, or a list"),
        ("eos_token_id", [2, "3"], "it must be a token id from 0 to 99, or a list"),
        ("eos_token_id", True, "it must be a token id from 0 to 99, or a list"),
        ("eos_token_id", -1, "it must be a token id from 0 to 99, or a list"),
        ("eos_token_id", [2, 100], "it must be a token id from 0 to 99, or a list"),
        ("dtype", 16, "it must be a string"),
        ("torch_dtype", ["bfloat16"], "it must be a string"),
        ("model_type", 1, "it must be a string"),
        ("architectures", "LlamaForCausalLM", "it must be a list of strings"),
        ("architectures", [["LlamaForCausalLM"]], "it must be a list of strings"),
        ("rope_theta", 0, "it must be a number above 0"),
        ("rope_scaling", "yarn", "it must be an object with a rope_type"),
    ],
)
def test_a_setting_of_a_wrong_type_or_range_is_named_with_its_value(name, value, rule):
    says = f"{name} is {value!r} in the model's config.json: {rule}"
    with pytest.raises(ValueError, match=re.escape(says)):
        ModelConfig.from_dicts(LLAMA | {name: value}, {})


def test_a_wrong_end_of_text_is_named_with_the_file_it_is_in():
    says = r"eos_token_id is \[2, '3'\] in the model's generation_config\.json: it must be a token"
    with pytest.raises(ValueError, match=says):
        ModelConfig.from_dicts(LLAMA, {"eos_token_id": [2, "3"]})


def test_what_may_be_left_out_may_be_null():
    optional = ("num_key_value_heads", "head_dim", "rope_scaling", "tie_word_embeddings")
    optional += ("attention_bias", "mlp_bias", "bos_token_id", "dtype", "torch_dtype")
    nulls = dict.fromkeys(optional)
    assert ModelConfig.from_dicts(LLAMA | nulls, {}) == ModelConfig.from_dicts(LLAMA, {})


def test_a_folder_without_a_readable_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json does not exist"):
        ModelConfig.from_folder(tmp_path)
    for text in ("{", "[" * 100_000, '{"vocab_size": ' + "9" * 5000 + "}"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config\.json is not JSON"):
            ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"generation_config\.json holds no JSON object"):
        ModelConfig.from_folder(tmp_path)


def test_a_config_that_is_a_folder_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        ModelConfig.from_folder(tmp_path)


def test_importing_the_package_does_not_import_transformers():
    code = "import sys, phloem.model_runner; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
