"""Puts an engine together: model, pool, tree, scheduler, runner and loop, from one `ServerArgs`.

Everything that a component needs is made here and passed in; no component looks for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phloem.mem_pool import (
    CacheManager,
    NoPrefixTree,
    PageAllocator,
    RowTable,
    SlotAllocator,
    TokenAllocator,
    capacity_tokens,
)
from phloem.radix_cache import RadixCache
from phloem.scheduler import EventLoop, Runner, Scheduler, SchedulerConfig, create_loop
from phloem.scheduler.budget import tokens_needed
from phloem.scheduler.scripted import EMBEDDING_SIZE
from phloem.server.config import CHUNKING_OFF, ServerArgs
from phloem.server.grammars import Grammars, forced_tokens
from phloem.server.messages import EngineFacts
from phloem.server.scripted_model import SCRIPTED, load_scripted_model
from phloem.server.startup import Laps
from phloem.server.stop_strings import TextStopChecker
from phloem.server.tiers import ArrayMemory, KVMemory, make_tiers, wants_tiers
from phloem.server.tokenizer import Tokenizer
from phloem.server.vocabulary import grammar_vocabulary

if TYPE_CHECKING:
    from phloem.model_runner import LlamaModel
    from phloem.model_runner.sources import Progress

_CPU_CHUNK = 512
"""Keeps a prefill step on a CPU under about a second, so that running requests are not held up."""
_GPU_CHUNK = 8192


@dataclass(frozen=True)
class EngineParts:
    """A complete engine, not running yet."""

    args: ServerArgs
    model_name: str
    tokenizer: Tokenizer
    scheduler: Scheduler
    runner: Runner
    loop: EventLoop
    close: Callable[[], None]
    """Ends what the runner and the cache started; what is cached on disk is there then."""
    startup_seconds: Mapping[str, float]
    """How long each part of making it took, in order."""
    grammars: Grammars | None
    """None: constraints are refused."""
    embedding_size: int
    """Of the vectors that prompts are pooled to."""
    facts: EngineFacts


def build(args: ServerArgs, progress: Progress | None = None) -> EngineParts:
    """Make an engine; with a real model this fetches, converts and loads it.

    Raises:
        ValueError: for options that do not fit the model or the machine, and a model not to be had.
    """
    if args.model.startswith(SCRIPTED):
        return _build_scripted(args)
    return _build_real(args, progress)


def _build_real(args: ServerArgs, progress: Progress | None) -> EngineParts:
    laps = Laps()
    # Imported here: torch takes a second, and neither a scripted model nor a bad option needs it.
    import torch

    from phloem.mem_pool.kv import KVPool, KVShape
    from phloem.model_runner import ModelRunner, load_model
    from phloem.model_runner.quantization import choose_quantization
    from phloem.model_runner.sources import resolve_model
    from phloem.server.compute import dtype_name, kv_cache_dtype, make_ops, weights_dtype
    from phloem.server.kv_memory import PoolMemory

    device = _device(args, torch.cuda.is_available())
    laps.lap("import torch")
    folder = resolve_model(
        args.model,
        cache_dir=args.cache_dir,
        offline=args.offline,
        float_weights=False,
        progress=progress,
    )
    tokenizer = Tokenizer.from_folder(folder.path)
    laps.lap("load the tokenizer")
    ops = make_ops(args, device)
    laps.lap(f"make the kernels ({ops.name})")
    quantization = choose_quantization(args.quantization, folder.path, ops.fastest_rounded)
    model = load_model(folder.path, weights_dtype(args, device), device, ops, quantization)
    laps.lap(f"load the weights ({quantization})")
    c = model.config
    kv_dtype = kv_cache_dtype(args, model.dtype, quantization)
    shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, kv_dtype)
    slots = _slots(args, shape.bytes_per_token, _available_bytes(device), device)
    kv = KVPool(slots.num_slots, shape, device, page_size=args.page_size)
    memory = PoolMemory(kv, folder.path, f"{model.dtype} {quantization} {ops.name}")
    eos_ids = _eos_ids(model, tokenizer)
    config = _scheduler_config(args, c.context_length, c.vocab_size, eos_ids, device)
    rows = RowTable(config.max_running_requests, config.context_len)
    manager = _manager(args, rows, slots, memory)
    overlap = device != "cpu" if args.enable_overlap is None else args.enable_overlap
    runner = ModelRunner(model, kv, rows.table, overlap=overlap, layer_ready=memory.layer_ready)
    laps.lap("make the KV cache")
    facts = EngineFacts(
        device=device,
        kernels=ops.name,
        quantization=quantization,
        dtype=dtype_name(model.dtype),
        kv_dtype=dtype_name(kv_dtype),
        kv_bytes=kv.nbytes,
        chunk=config.chunked_prefill_size,
        overlap=overlap,
    )
    what = (args, folder.name, tokenizer, config, manager, runner, facts)
    return _parts(*what, runner.close, laps.seconds, c.hidden_size)


def _build_scripted(args: ServerArgs) -> EngineParts:
    laps = Laps()
    scripted = load_scripted_model(args)
    laps.lap("read the script")
    slots = _allocator(args.max_total_tokens or scripted.pool_tokens, args.page_size)
    config = _scheduler_config(
        args, scripted.context_length, scripted.tokenizer.vocab_size, scripted.eos_token_ids, "cpu"
    )
    rows = RowTable(config.max_running_requests, config.context_len)
    runner = scripted.runner(rows.table, slots.num_slots)
    manager = _manager(args, rows, slots, ArrayMemory(runner.kv))
    facts = EngineFacts(
        device="cpu",
        kernels="scripted",
        quantization="none",
        dtype="none",
        kv_dtype="none",
        kv_bytes=0,
        chunk=config.chunked_prefill_size,
        overlap=bool(args.enable_overlap),
    )
    what = (args, args.model, scripted.tokenizer, config, manager, runner, facts)
    return _parts(*what, lambda: None, laps.seconds, EMBEDDING_SIZE)


def _parts(
    args: ServerArgs,
    name: str,
    tokenizer: Tokenizer,
    config: SchedulerConfig,
    manager: CacheManager,
    runner: Runner,
    facts: EngineFacts,
    close: Callable[[], None],
    startup_seconds: Mapping[str, float],
    embedding_size: int,
) -> EngineParts:
    scheduler = Scheduler(
        config, manager, TextStopChecker(tokenizer), tokenizer=forced_tokens(tokenizer)
    )
    loop = create_loop(scheduler, runner, facts.overlap)

    def end() -> None:
        close()
        manager.tiers.close()

    grammars = _grammars(args, tokenizer, config)
    return EngineParts(
        args,
        name,
        tokenizer,
        scheduler,
        runner,
        loop,
        end,
        startup_seconds,
        grammars,
        embedding_size,
        facts,
    )


def _grammars(args: ServerArgs, tokenizer: Tokenizer, config: SchedulerConfig) -> Grammars | None:
    if args.grammar_backend == "none":
        return None
    return Grammars(
        args.grammar_backend,
        lambda: grammar_vocabulary(tokenizer, config.vocab_size, config.eos_token_ids),
        steering=args.grammar_steering,
    )


def _scheduler_config(
    args: ServerArgs,
    model_context: int,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
    device: str,
) -> SchedulerConfig:
    context = args.context_length or model_context
    if context > model_context:
        raise ValueError(
            f"context_length {context} is more than the {model_context} tokens that the model was "
            "made for: give at most that"
        )
    chunk = args.chunked_prefill_size
    if chunk is None:
        chunk = max(_CPU_CHUNK if device == "cpu" else _GPU_CHUNK, args.page_size)
    return SchedulerConfig(
        context_len=context,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        max_running_requests=args.max_running_requests,
        max_prefill_tokens=args.max_prefill_tokens,
        chunked_prefill_size=None if chunk == CHUNKING_OFF else chunk,
        schedule_policy=args.schedule_policy,
        lpm_fallback_above=args.lpm_fallback_above,
        aging_tokens=args.aging_tokens,
        in_batch_shared_tokens=args.in_batch_shared_tokens,
        enable_priority_scheduling=args.enable_priority_scheduling,
        priority_preemption_threshold=args.priority_preemption_threshold,
        schedule_low_priority_values_first=args.schedule_low_priority_values_first,
        enable_tenant_fairness=args.enable_tenant_fairness,
        enable_mixed_chunk=args.enable_mixed_chunk,
        itl_target_ms=args.itl_target_ms,
        max_queued_requests=args.max_queued_requests,
        max_queued_tokens=args.max_queued_tokens,
        request_timeout=args.request_timeout,
        queue_timeout=args.queue_timeout,
        schedule_conservativeness=args.schedule_conservativeness,
        enable_jump_forward=args.jump_forward,
        default_seed=secrets.randbits(62) if args.random_seed is None else args.random_seed,
    )


def _manager(
    args: ServerArgs, rows: RowTable, slots: SlotAllocator, memory: KVMemory
) -> CacheManager:
    if args.disable_radix_cache:
        return CacheManager(NoPrefixTree(args.page_size), rows, slots)
    tiered = wants_tiers(args)
    tree = RadixCache(
        args.page_size,
        values="numpy",
        policy="priority" if args.uses_priorities else "lru",
        host_tier=tiered,
        host_values="numpy" if tiered else None,
        most_retained=slots.capacity // 2,
        most_retained_each=slots.capacity // 4,
    )
    tiers = make_tiers(args, tree, slots.capacity, memory) if tiered else None
    return CacheManager(tree, rows, slots, tiers=tiers, idle_ttl=args.cache_idle_ttl)


def _slots(args: ServerArgs, token_bytes: int, available: int, device: str) -> SlotAllocator:
    options = {} if device == "cpu" else {"cap_bytes": None}
    capacity = capacity_tokens(
        token_bytes,
        available,
        mem_fraction_static=args.mem_fraction_static,
        max_total_tokens=args.max_total_tokens,
        page_size=args.page_size,
        **options,
    )
    return _allocator(capacity, args.page_size)


def _allocator(capacity: int, page_size: int) -> SlotAllocator:
    """The slots of a KV cache, of which there must be enough for some request."""
    least = tokens_needed(1, 1, page_size)
    least = -(-least // page_size) * page_size
    if capacity < least:
        raise ValueError(
            f"a KV cache of {capacity} tokens serves nobody: a prompt of one token and one token "
            f"of output need {least} with page_size {page_size}: give a max_total_tokens of "
            f"{least} or more"
        )
    return TokenAllocator(capacity) if page_size == 1 else PageAllocator(capacity, page_size)


def _device(args: ServerArgs, has_gpu: bool) -> str:
    if args.device == "auto":
        return "cuda" if has_gpu else "cpu"
    if args.device.partition(":")[0] == "cuda" and not has_gpu:
        raise ValueError(
            f"device {args.device!r} was asked for, but torch sees no GPU: use cpu, or install a "
            "torch build for your GPU"
        )
    if args.device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device {args.device!r} is unknown: use auto, cpu, cuda or cuda:N")
    return args.device


def _available_bytes(device: str) -> int:
    if device == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def _eos_ids(model: LlamaModel, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ends of a text by the model's configs, and the tokenizer's own: chat models use both.

    A tokenizer may know more tokens than the model has; those never come.
    """
    own = tokenizer.eos_token_id
    if own is None or own >= model.config.vocab_size:
        return model.config.eos_token_ids
    return tuple(dict.fromkeys((*model.config.eos_token_ids, own)))
