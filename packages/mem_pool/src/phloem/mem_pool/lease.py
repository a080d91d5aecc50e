"""A lease: one sequence's claim on a row and on slots; plain data that `CacheManager` changes."""

from __future__ import annotations

from dataclasses import dataclass

from phloem.mem_pool.tree import Namespace, TreeHandle, TreeLock


@dataclass(slots=True, eq=False)
class Lease:
    """Who owns the slots that stand in a row, by position.

    ::

        0              protected              committed           allocated            max_len
        |  the tree's,  |  ours: valid KV,     |  ours: reserved,   |  unused            |
        |  locked by us |  not in the tree yet |  no valid KV yet   |                    |

    `protected <= committed <= allocated`, in tokens. `protected` is a multiple of the page; the
    last page that is ours may be partial, and belongs to us whole.
    """

    row: int
    generation: int
    """The row's generation at `open`; the table's differs once the row went to somebody else."""
    namespace: Namespace
    protected: int = 0
    committed: int = 0
    allocated: int = 0
    lock: TreeLock | None = None
    """The tree's receipt that keeps `[0, protected)` there; None while that is empty."""
    prefix: TreeHandle | None = None
    """The tree's handle of `[0, protected)`; None while that is empty."""
    closed: bool = False
