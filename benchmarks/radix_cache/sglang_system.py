"""SGLang's trees: the Python `RadixCache`, and the Rust core that is its default.

Only the tree's own modules are loaded from the wheel; the allocator is one that counts. The Rust
core comes twice: behind SGLang's adapter, driven as `UnifiedRadixCache` drives it (what its engine
pays), and bare, by the calls of the extension (the least that it can cost).
"""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

import torch

from benchmarks.radix_cache import placeholders
from benchmarks.radix_cache.workloads import Tokens

_MEM = "sglang.srt.mem_cache"


def _is_int64_array(values: object, name: str) -> None:
    if not isinstance(values, array) or values.typecode != "q":
        raise TypeError(f"{name} are no array('q')")


placeholders.install(
    real=(
        f"{_MEM}.radix_cache",
        f"{_MEM}.base_prefix_cache",
        f"{_MEM}.cache_init_params",
        f"{_MEM}.events",
        f"{_MEM}.utils",
        f"{_MEM}.evict_policy",
        f"{_MEM}.unified_cache.component_type",
        f"{_MEM}.unified_cache.cache_action",
        f"{_MEM}.unified_cache.unified_tree_core_interface",
        f"{_MEM}.rust_tree_core.adapter",
        f"{_MEM}.rust_tree_core.mem_cache",
        "sglang.srt.environ",
    ),
    given={"sglang.srt.utils": {"assert_int64_array": _is_int64_array}},
)
# The loader of the extension would look for a compiler; the wheel brings it compiled.
_native: Any = import_module(f"{_MEM}.rust_tree_core.mem_cache")
vars(import_module(f"{_MEM}.rust_tree_core.extension"))["bindings"] = _native
_base: Any = import_module(f"{_MEM}.base_prefix_cache")
_python: Any = import_module(f"{_MEM}.radix_cache")
_params: Any = import_module(f"{_MEM}.cache_init_params")
_adapter: Any = import_module(f"{_MEM}.rust_tree_core.adapter")
_FULL: Any = import_module(f"{_MEM}.unified_cache.component_type").ComponentType.FULL

torch.set_num_threads(1)


class _Counter:
    """Stands for the allocator: counts what is freed."""

    device = "cpu"

    def __init__(self) -> None:
        self.freed = 0

    def free_segment(self, indices: torch.Tensor, start_pos: int = 0) -> None:
        self.freed += len(indices)


class SglangPython:
    """`RadixCache`, keys in array('q'), values int64 tensors."""

    def __init__(self, page_size: int, capacity: int) -> None:
        self._allocator = _Counter()
        self._slots = torch.arange(1 << 16, dtype=torch.int64)
        self._tree = self._create(
            _params.CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self._allocator,
                page_size=page_size,
                tree_components=(_FULL,),
            )
        )

    def _create(self, params: Any) -> Any:
        return _python.RadixCache(params)

    def encode(self, tokens: Tokens) -> array[int]:
        """The int64 array that a request holds."""
        ids = array("q")
        ids.frombytes(tokens.astype("int64").tobytes())
        return ids

    def values(self, n: int) -> torch.Tensor:
        """A view, which the tree clones."""
        return self._slots[:n]

    def key(self, encoded: array[int], earlier: Any = None) -> Any:
        """Wraps the array."""
        return _python.RadixKey(encoded)

    def key_from_list(self, ids: list[int]) -> Any:
        """Packs by way of `array`."""
        return _python.RadixKey(array("q", ids))

    def match(self, key: Any) -> Any:
        """`match_prefix`."""
        return self._tree.match_prefix(_base.MatchPrefixParams(key=key))

    def length(self, found: Any) -> int:
        """Tokens on the device."""
        return int(found.device_prefix_len)

    def read(self, found: Any) -> torch.Tensor:
        """Joined slots."""
        indices: torch.Tensor = self._tree.path_device_indices(found.last_device_node)
        return indices

    def lock(self, found: Any) -> Any:
        """A node, with a reference more."""
        self._tree.inc_lock_ref(found.last_device_node)
        return found.last_device_node

    def unlock(self, lock: Any) -> None:
        """A reference less."""
        self._tree.dec_lock_ref(lock)

    def insert(self, key: Any, values: torch.Tensor, found: Any) -> None:
        """`insert`."""
        self._tree.insert(_base.InsertParams(key=key, value=values))

    def evict(self, n: int) -> int:
        """Whole leaves, given to the allocator."""
        before = self._allocator.freed
        self._tree.evict(_base.EvictParams(num_tokens=n))
        return self._allocator.freed - before

    def used(self) -> int:
        """Evictable and protected."""
        return int(self._tree.evictable_size() + self._tree.protected_size())


class SglangRust(SglangPython):
    """`RustUnifiedTreeCore`, stepped as `UnifiedRadixCache` steps it."""

    def _create(self, params: Any) -> Any:
        tree = _adapter.RustUnifiedTreeCore(params)
        self._root = tree.root_node_handle()
        return tree

    def read(self, found: Any) -> torch.Tensor:
        """Joined slots."""
        indices: torch.Tensor = self._tree.collect_full_device_indices(
            found.last_device_node, self._root
        )
        return indices

    def lock(self, found: Any) -> Any:
        """A node and its receipt."""
        result = self._tree.inc_lock_ref(found.last_device_node)
        return found.last_device_node, result.to_dec_params()

    def unlock(self, lock: Any) -> None:
        """Takes the receipt."""
        node, receipt = lock
        self._tree.dec_lock_ref(node, receipt)

    def insert(self, key: Any, values: torch.Tensor, found: Any) -> None:
        """Steps until a step has the result."""
        length = found.device_prefix_len
        step = self._tree.begin_insert(
            _base.InsertParams(key=key, value=values, prev_prefix_len=length)
        )
        while step.result is None:
            self._free_actions(step.actions)
            step = self._tree.resume_insert()
        self._free_actions(step.actions)
        self._free_actions(self._tree.end_insert())

    def evict(self, n: int) -> int:
        """Leaf by leaf; what each step frees goes to the allocator."""
        tree, before, tracker = self._tree, self._allocator.freed, {_FULL: 0}
        tree.evict_device_start(_FULL, n)
        while True:
            step = tree.evict_device_next_node(_FULL, tracker)
            self._drain(step, tracker)
            if step.node_id is not None:
                self._drain(tree.evict_device_leaf(step.node_id, False), tracker)
            elif not step.made_progress:
                break
        tree.evict_device_end(_FULL)
        return self._allocator.freed - before

    def _drain(self, step: Any, tracker: dict[Any, int]) -> None:
        for component in list(step.device_frees):
            for indices in step.device_frees.pop(component):
                self._allocator.free_segment(indices)
        self._free_actions(step.cache_actions)
        for component, n in step.tracker.items():
            tracker[component] += n

    def _free_actions(self, actions: list[Any]) -> None:
        for action in actions:
            for indices in action.indices:
                self._allocator.free_segment(indices)
        actions.clear()


class SglangRustCore(SglangRust):
    """The extension's own calls, without SGLang's adapter."""

    def _create(self, params: Any) -> Any:
        return super()._create(params)._binding

    def match(self, key: Any) -> Any:
        """The extension's `match_prefix`."""
        return self._tree.match_prefix(_native.MatchParamsBinding(key.token_ids))

    def read(self, found: Any) -> torch.Tensor:
        """Joined slots."""
        indices: torch.Tensor = self._tree.collect_full_device_indices(
            found.last_device_node_id, self._root
        )
        return indices

    def lock(self, found: Any) -> Any:
        """A node and its receipt."""
        node = found.last_device_node_id
        return node, self._tree.inc_lock_ref(node)

    def unlock(self, lock: Any) -> None:
        """Takes the receipt."""
        node, receipt = lock
        self._tree.dec_lock_ref(
            node,
            _native.DecLockRefParamsBinding(
                receipt.node_id,
                receipt.skipped_lock_components,
                component_lock_uuids=receipt.component_lock_uuids,
                component_host_lock_uuids=receipt.component_host_lock_uuids,
            ),
        )

    def insert(self, key: Any, values: torch.Tensor, found: Any) -> None:
        """In one call."""
        length = found.device_prefix_len
        self._tree.insert(
            _native.InsertParamsBinding(key.token_ids, values, prev_prefix_len=length)
        )

    def evict(self, n: int) -> int:
        """Leaf by leaf; what each step frees goes to the allocator."""
        tree, before, freed = self._tree, self._allocator.freed, 0
        tree.evict_device_start(0, n)
        while True:
            step = tree.evict_device_next_node(0, {0: freed})
            if step.node_id is None and not step.made_progress:
                break
            if step.node_id is not None:
                step = tree.evict_device_leaf(step.node_id)
            for indices in step.new_device_frees.get(0, ()):
                self._allocator.free_segment(indices)
            freed += step.tracker.get(0, 0)
        tree.evict_device_end(0)
        return self._allocator.freed - before
