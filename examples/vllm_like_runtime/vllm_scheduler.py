"""The tree inside vLLM itself: a scheduler class for `--scheduler-cls`, for vLLM 0.32.

vLLM lets a scheduler be chosen, and no cache manager: so this scheduler is vLLM's with another
manager in it. Needs vLLM. One KV cache group of full attention, no KV connector, no asynchronous
scheduling; what else vLLM's scheduler does is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.sched.output import CachedRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request, RequestStatus

from phloem.radix_cache.adapters import block_manager


@dataclass(frozen=True, slots=True)
class RequestView:
    """What the block manager reads of a vLLM request."""

    request: Request

    @property
    def request_id(self) -> str:
        """As vLLM's."""
        return self.request.request_id

    @property
    def all_token_ids(self) -> Sequence[int]:
        """As vLLM's."""
        return self.request.all_token_ids

    @property
    def num_tokens(self) -> int:
        """As vLLM's."""
        return self.request.num_tokens

    @property
    def num_computed_tokens(self) -> int:
        """As vLLM's: at the next `schedule` and at `free`, the steps it counts are done."""
        return self.request.num_computed_tokens

    @property
    def lora_name(self) -> str | None:
        """The adapter's name."""
        lora = self.request.lora_request
        return None if lora is None else lora.lora_name

    @property
    def cache_salt(self) -> str | None:
        """As vLLM's."""
        return self.request.cache_salt

    @property
    def contents(self) -> Sequence[block_manager.Content]:
        """Images and the like."""
        return [
            block_manager.Content(
                feature.mm_position.offset, feature.mm_position.length, feature.identifier
            )
            for feature in self.request.mm_features
        ]


@dataclass
class FoundBlocks(KVCacheBlocks):
    """A look-up's result on its way through vLLM's scheduler; it names no blocks yet."""

    prefix: block_manager.CachedPrefix


class RadixKVCacheManager(KVCacheManager):
    """vLLM's manager with every decision about blocks taken by ours.

    The base's own pool and coordinator give nothing away. They stay for what vLLM reads of them:
    block sizes, empty lists of hybrid models, and the objects that stand for block ids.
    """

    def __init__(self, base: KVCacheManager) -> None:
        # vLLM's scheduler has built `base` already, by many arguments: take its state over.
        vars(self).update(vars(base))
        (group,) = self.kv_cache_config.kv_cache_groups
        self.radix = block_manager.KVCacheManager(
            self.kv_cache_config.num_blocks,
            group.kv_cache_spec.block_size,
            enable_caching=self.enable_caching,
            max_model_len=self.max_model_len,
        )

    @property
    def usage(self) -> float:
        """Share of the pool in use."""
        return self.radix.usage

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int, int]:
        """A look-up; the third number is about hybrid models."""
        if not self.prefix_cache_lookup_enabled(request) or request.prompt_embeds is not None:
            return self.empty_kv_cache_blocks, 0, 0
        prefix, hit = self.radix.get_computed_blocks(RequestView(request))
        return FoundBlocks(self.empty_kv_cache_blocks.blocks, prefix), hit, 0

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        **others: object,
    ) -> KVCacheBlocks | None:
        """Slots for a step; `others` are about connectors and encoders, which are refused."""
        entering = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        watermark = self.watermark_blocks if entering and has_scheduled_reqs else 0
        found = new_computed_blocks if isinstance(new_computed_blocks, FoundBlocks) else None
        blocks = self.radix.allocate_slots(
            RequestView(request),
            num_new_tokens,
            num_new_computed_tokens,
            None if found is None else found.prefix,
            num_lookahead_tokens,
            full_sequence_must_fit=full_sequence_must_fit,
            reserved_blocks=reserved_blocks + watermark,
        )
        return None if blocks is None else self._as_vllm(blocks)

    def free(self, request: Request) -> None:
        """Take a request's blocks back."""
        self.radix.free(RequestView(request), cache_computed=request.prompt_embeds is None)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The whole table of a request."""
        return self._as_vllm(self.radix.get_blocks(request_id))

    def take_moved(self) -> dict[str, KVCacheBlocks]:
        """Whole tables of requests whose blocks were exchanged for equal ones."""
        return {name: self._as_vllm(blocks) for name, blocks in self.radix.take_moved().items()}

    def reset_prefix_cache(self) -> bool:
        """Forget all, unless blocks are in use."""
        done = self.radix.reset_prefix_cache()
        if done and self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return done

    def estimate_cached_tokens(self, request: Request) -> int:
        """Tokens of the request in full computed blocks."""
        size = self.radix.block_size
        return min(request.num_computed_tokens, request.num_tokens) // size * size

    def _as_vllm(self, blocks: block_manager.KVCacheBlocks) -> KVCacheBlocks:
        known = self.block_pool.blocks
        return self.create_kv_cache_blocks(([known[at] for at in blocks.block_ids],))


class RadixScheduler(Scheduler):
    """vLLM's synchronous scheduler with our cache in it."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        if self.scheduler_config.async_scheduling:
            raise ValueError(
                "async_scheduling is on and this scheduler is vLLM's synchronous one: start vLLM "
                "with --no-async-scheduling"
            )
        groups = self.kv_cache_config.kv_cache_groups
        kinds = [type(group.kv_cache_spec).__name__ for group in groups]
        if kinds != [FullAttentionSpec.__name__] or self.connector is not None:
            raise ValueError(
                f"KV cache groups {kinds} with connector {self.connector}: this scheduler knows "
                "one group of full attention and no connector; use vLLM's own for the rest"
            )
        self.kv_cache_manager = RadixKVCacheManager(self.kv_cache_manager)
        self.moved_tables = 0

    def _make_cached_request_data(
        self,
        running_reqs: list[Request],
        resumed_reqs: list[Request],
        num_scheduled_tokens: dict[str, int],
        spec_decode_tokens: dict[str, list[int]],
        req_to_new_blocks: dict[str, KVCacheBlocks],
    ) -> CachedRequestData:
        """Send a moved table as that of a resumed request: workers then replace what they have."""
        moved = self.kv_cache_manager.take_moved()
        self.moved_tables += len(moved)
        data = super()._make_cached_request_data(
            running_reqs,
            resumed_reqs,
            num_scheduled_tokens,
            spec_decode_tokens,
            req_to_new_blocks | moved,
        )
        return replace(data, resumed_req_ids=data.resumed_req_ids | moved.keys())
