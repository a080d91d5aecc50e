import json
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
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "sliding_window 4096"),
        ({"quantization_config": {"bits": 4}}, "checkpoint is quantized"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope type 'yarn' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_name(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dicts(LLAMA | change, {})


def test_a_folder_without_a_readable_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json does not exist"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"generation_config\.json holds no JSON object"):
        ModelConfig.from_folder(tmp_path)


def test_importing_the_package_does_not_import_transformers():
    code = "import sys, phloem.model_runner; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
