"""The decode step of a whole model, beside what it is made of.

The least that a step could take is counted as the sum of its matrix products alone, measured with
the same packed weights and rows, the bytes of its KV at the rate at which memory is read, and the
arithmetic of its attention at the peak of multiply-adds. What is outside of the native calls that
run a step is what `ModelRunner` and the op table do, almost all of it in Python; the same is told
of a whole engine (`benchmarks.kernels.engine`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch

from benchmarks.kernels.attention import attention_work, filled_pool, slots_of
from benchmarks.kernels.engine import EngineStep, engine_step
from benchmarks.kernels.machine import Machine, Probes, Work
from benchmarks.kernels.shapes import Shapes
from benchmarks.kernels.timing import Call, medians
from phloem.kernels import Decoder, DecoderSpec
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.linear import CpuLinear
from phloem.kernels.cpu_backend.ops import CpuOps
from phloem.mem_pool.kv import KVShape
from phloem.model_runner import LlamaModel, ModelRunner, ModelSourceError, load_model, resolve_model
from phloem.model_runner.gguf_record import GgufRecord
from phloem.scheduler import ModelWorkerBatch, SamplingBatch, SamplingParams


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one step and of its linears alone, and the work of its attention."""

    step: float
    products: float
    outside: float
    attention: Work
    engine: EngineStep

    def beside(self, machine: Machine) -> StepTimes:
        """With what attention takes at least on a machine."""
        return StepTimes(
            step=self.step,
            products=self.products,
            kv=self.attention.bytes / machine.read,
            attention=self.attention.arithmetic(machine),
            outside=self.outside,
            engine_step=self.engine.step,
            engine_outside=self.engine.outside,
        )


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step, and of its parts."""

    step: float
    products: float
    kv: float
    """The bytes of the KV cache at the measured rate."""
    attention: float
    """The arithmetic of attention at the measured peak."""
    outside: float
    """Of the step, what was not in the native calls that run it."""
    engine_step: float
    """The step as a whole engine takes it."""
    engine_outside: float
    """Of that likewise."""

    @property
    def ratio(self) -> float:
        """The step to the sum of its parts."""
        return self.step / (self.products + self.kv + self.attention)

    @property
    def outside_share(self) -> float:
        """Of the step."""
        return self.outside / self.step

    @property
    def engine_outside_share(self) -> float:
        """Of the engine's step."""
        return self.engine_outside / self.engine_step


class Stage:
    """A model on the `cpu` backend, whose native calls are timed."""

    def __init__(self, folder: Path, quantization: str, threads: int) -> None:
        self._ops = _TimedOps(threads)
        self.model: LlamaModel = load_model(folder, ops=self._ops, quantization=quantization)

    @property
    def weights(self) -> list[CpuLinear]:
        """All linears of a step, in its order."""
        spec = self._ops.spec
        layers = ((one.qkv, one.output, one.gate_up, one.down) for one in spec.layers)
        return [*(weight for layer in layers for weight in layer), spec.head]

    def measure(
        self,
        probes: Probes,
        batch: int,
        context: int,
        kv_dtype: torch.dtype,
        seconds: float,
        engine_steps: int,
    ) -> Measured:
        """Steps of `batch` requests that have `context` tokens with the new one; greedy."""
        c = self.model.config
        table = slots_of(batch, context, 0)
        pool = filled_pool(
            batch * context + 1, KVShape(c.num_layers, c.num_kv_heads, c.head_dim, kv_dtype)
        )
        outside: list[float] = []
        with ModelRunner(self.model, pool, table) as runner:
            step = self._watched(_step(runner, table, c.vocab_size), outside)
            took, products = medians([step, probes.linears(self.weights, batch)], seconds)
        shapes = Shapes(heads=c.num_heads, kv_heads=c.num_kv_heads, head_dim=c.head_dim)
        layer = attention_work(shapes, kv_dtype, table, 1)
        engine = engine_step(
            self.model, lambda: self._ops.clock.seconds, batch, context, kv_dtype, engine_steps
        )
        attention = layer.times(c.num_layers)
        return Measured(took, products, statistics.median(outside), attention, engine)

    def _watched(self, step: Call, outside: list[float]) -> Call:
        clock = self._ops.clock

        def watched() -> None:
            clock.seconds = 0.0
            start = time.perf_counter()
            step()
            outside.append(time.perf_counter() - start - clock.seconds)

        return watched


@contextmanager
def model_folder(model: str | None, say: Callable[[str], None]) -> Iterator[Path]:
    """The folder of `model`; None: of SmolLM2 if it is here, else of a random model of its shape.

    Raises:
        ModelSourceError: if there is no such model.
    """
    if model is not None:
        yield resolve_model(model, float_weights=False).path
        return
    try:
        found = resolve_model("smollm2", float_weights=False)
    except ModelSourceError as error:
        say(f"a random model takes the place of SmolLM2: {error}")
        with TemporaryDirectory(prefix="phloem-bench-") as folder:
            _save_random(Path(folder), Shapes())
            yield Path(folder)
        return
    yield found.path


def forms_of(folder: Path, asked: Sequence[str]) -> list[str]:
    """The forms that were asked for; without a GGUF file `int4` instead of `gguf`."""
    in_blocks = GgufRecord.read(folder) is not None
    return ["int4" if form == "gguf" and not in_blocks else form for form in asked]


def _save_random(folder: Path, s: Shapes) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=s.vocab,
        hidden_size=s.hidden,
        intermediate_size=s.intermediate,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def _step(runner: ModelRunner, table: np.ndarray, vocab_size: int) -> Call:
    """A call that decodes the last token of each row of the table, from the batch to its result."""
    batch, context = table.shape
    made = ModelWorkerBatch(
        rows=np.arange(batch, dtype=np.int32),
        query_lens=np.ones(batch, np.int32),
        seq_lens=np.full(batch, context, np.int32),
        input_ids=np.random.default_rng(0).integers(0, vocab_size, batch).astype(np.int32),
        out_slots=table[:, -1].copy(),
        samples=np.ones(batch, bool),
        sampling=SamplingBatch.from_params(
            [SamplingParams(temperature=0.0)] * batch, [0] * batch, [context] * batch
        ),
        masked=False,
    )

    def call() -> None:
        step = runner.forward(made)
        runner.sample(step, None)
        runner.result(step)

    return call


@dataclass(slots=True)
class _Clock:
    """How long native calls took since it was set back."""

    seconds: float = 0.0


class _TimedOps(CpuOps):
    """Makes one decoder, remembers of what, and times its native calls."""

    spec: DecoderSpec

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.clock = _Clock()
        self._library = cast("Library", _TimedLibrary(self._library, self.clock))

    def decoder(self, spec: DecoderSpec) -> Decoder:
        self.spec = spec
        return super().decoder(spec)


class _TimedLibrary:
    """A library whose functions are timed: of those that were not asked for before."""

    def __init__(self, library: Library, clock: _Clock) -> None:
        self._library = library
        self._clock = clock
        self.isa = library.isa

    def function(self, name: str, *argtypes: Any, restype: Any = None) -> Callable[..., Any]:
        native, clock = self._library.function(name, *argtypes, restype=restype), self._clock

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = native(*arguments)
            clock.seconds += time.perf_counter() - start
            return result

        return timed
