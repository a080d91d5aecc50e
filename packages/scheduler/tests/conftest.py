"""A whole scheduler over the real tree and pool, driven by a script and a fake clock."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from phloem.mem_pool import CacheManager, PageAllocator, RowTable, TokenAllocator
from phloem.radix_cache import RadixCache
from phloem.scheduler import (
    FinishReason,
    RequestOutput,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    ScriptedRowError,
    ScriptedRunner,
    create_loop,
)
from phloem.scheduler.scripted import EMBEDDING_SIZE, hidden_state

# Importlib mode puts no folder on the path: `constraint_support` is found by this.
sys.path.insert(0, str(Path(__file__).parent))

VOCAB = 50
ASKED = (
    *("timeout", "queue_timeout", "priority", "tenant", "explain_cache"),
    *("matcher", "steer", "jump_forward", "retention", "pooling"),
)
EOS = 0


def hash_script(history):
    """Some token that depends on the whole history; end of text now and then."""
    mixed = (
        int(np.dot(history.astype(np.int64), np.arange(1, len(history) + 1) * 7919)) + 13
    ) % 1009
    return EOS if mixed % 17 == 0 else 1 + mixed % (VOCAB - 1)


def endless_script(history):
    """Tokens without an end of text among them."""
    return 1 + int(history.sum()) % 40


def pytest_addoption(parser):
    parser.addoption("--soak", type=int, help="requests of the scheduler's soak test")


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@dataclass
class Ended:
    """All news of one request, put together."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    last: RequestOutput | None = None


class Harness:
    """A scheduler with its loop; `outputs` gathers what each request got.

    `tiers(tree, kv)` makes the tiers below the device from a tree with a host tier and the runner's
    pretended KV; `host_values` is that tree's.
    """

    def __init__(
        self,
        *,
        capacity=400,
        page_size=1,
        overlap=False,
        script=hash_script,
        rows=None,
        stop_checker=None,
        tiers=None,
        host_values=None,
        tokenizer=None,
        **config,
    ):
        config.setdefault("chunked_prefill_size", None)
        self.config = SchedulerConfig(
            **{"context_len": 200, "vocab_size": VOCAB, "eos_token_ids": (EOS,), **config}
        )
        slots = TokenAllocator(capacity) if page_size == 1 else PageAllocator(capacity, page_size)
        max_rows = rows if rows is not None else self.config.max_running_requests
        table = RowTable(max_rows, self.config.context_len)
        self.runner = ScriptedRunner(table.table, slots.num_slots, script, VOCAB)
        tree = RadixCache(
            page_size, values="numpy", host_tier=tiers is not None, host_values=host_values
        )
        below = None if tiers is None else tiers(tree, self.runner.kv)
        self.manager = CacheManager(tree, table, slots, tiers=below)
        self.clock = FakeClock()
        self.scheduler = Scheduler(
            self.config, self.manager, stop_checker, self.clock, tokenizer=tokenizer
        )
        self.loop = create_loop(self.scheduler, self.runner, overlap)
        self.outputs: dict[str, Ended] = {}
        self.steps = 0

    def add(self, rid, prompt, namespace=(), **params):
        """Add a request; what is no sampling parameter is for `Scheduler.add`."""
        params.setdefault("temperature", 0)
        asked = {name: params.pop(name) for name in ASKED if name in params}
        params = SamplingParams(**params)
        request = self.scheduler.add(rid, prompt, params, namespace, **asked)
        self.outputs[rid] = Ended()
        return request

    def step(self):
        """One step; conservation holds after it, and nobody hears of an ended request again.

        That is checked after each third step only: looking ends what leases do for several steps.
        """
        self.clock.now += 1.0
        self.steps += 1
        outputs = self.loop.step()
        if self.steps % 3 == 0:
            self.manager.check()
        for output in outputs:
            ended = self.outputs[output.rid]
            assert ended.finish_reason is None, f"{output.rid} was reported after its end"
            ended.token_ids += output.token_ids
            ended.logprobs += output.logprobs
            for part in output.prompt_logprobs:
                ended.prompt_logprobs += part.logprobs.tolist()
            ended.finish_reason = output.finish_reason
            ended.last = output
            assert output.completion_tokens == len(ended.token_ids)
        return outputs

    def step_until(self, reached, limit=1000):
        """Until a condition holds."""
        for _ in range(limit):
            if reached():
                return
            self.step()
        raise AssertionError(f"it did not happen in {limit} steps")

    def run(self, limit=2000):
        """Until idle; then every token of memory is free or evictable."""
        for _ in range(limit):
            if self.loop.idle:
                break
            self.step()
        assert self.loop.idle, "the loop did not come to rest"
        self.manager.check()
        assert self.manager.available == self.manager.capacity
        assert self.manager.rows.available == self.manager.rows.max_rows
        return self.outputs


def alone(prompt, max_new, script=hash_script, ignore_eos=False, stop_ids=()):
    """The output that a request has, computed without any engine."""
    history = list(prompt)
    for _ in range(max_new):
        try:
            token = script(np.array(history, np.int32))
        except ScriptedRowError:
            break
        history.append(token)
        if (token == EOS and not ignore_eos) or token in stop_ids:
            break
    return history[len(prompt) :]


def vector_alone(prompt, mode):
    """The vector that a prompt is pooled to, computed without any engine."""
    tokens = np.array(prompt, np.int32)
    total = np.zeros(EMBEDDING_SIZE)
    for end in range(1, len(tokens) + 1):
        state = hidden_state(tokens[:end])
        total = total + state
    return (state if mode == "last" else total / len(tokens)).astype(np.float32)


@pytest.fixture
def harness():
    """Makes harnesses."""
    return Harness


@pytest.fixture
def any_script():
    """A script whose every token depends on the whole history."""
    return hash_script


@pytest.fixture
def never_ends():
    """A script that goes on for ever."""
    return endless_script


@pytest.fixture(params=[False, True], ids=["normal", "overlap"])
def overlap(request):
    """Which loop."""
    return request.param


@pytest.fixture
def pooled_alone():
    """Computes what a prompt is pooled to alone."""
    return vector_alone


@pytest.fixture
def output_alone():
    """Computes what a request yields alone."""
    return alone
