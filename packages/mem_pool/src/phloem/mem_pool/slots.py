"""Slot allocators: which KV slots are free. They know ids and pages, never sequences or tensors.

Page 0 (slots `[0, page_size)`) is never handed out: padded reads and writes go there. The ids
handed out run from `page_size` to `page_size + capacity - 1`, so a KV buffer needs `num_slots =
page_size + capacity` slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from phloem.mem_pool.errors import OwnershipError, shortened

Slots: TypeAlias = npt.NDArray[np.int32]
"""int32 [n], KV slot ids."""
Counts: TypeAlias = npt.NDArray[np.int32]
"""int32 [k], a number of tokens of each of k sequences."""


class SlotAllocator(Protocol):
    """Hands out KV slots, all or nothing; equal calls give equal slots."""

    @property
    def page_size(self) -> int:
        """Slots per page; a power of two."""
        ...

    @property
    def capacity(self) -> int:
        """Slots that can be handed out, in tokens; a multiple of the page."""
        ...

    @property
    def num_slots(self) -> int:
        """Slots that a KV buffer must have: the capacity and the padding page."""
        ...

    @property
    def available(self) -> int:
        """Slots in free pages, in tokens."""
        ...

    def pages_needed(self, length: int, n: int) -> int:
        """New pages that `n` more tokens of a sequence of `length` tokens take."""
        ...

    def alloc_extend(self, last_slot: int, length: int, n: int) -> Slots | None:
        """Slots for `n` more tokens of a sequence; None (and nothing taken) when too few are free.

        Args:
            last_slot: the slot of the sequence's last token; not read when `length` is 0.
            length: tokens that the sequence has.
            n: tokens to add.

        Returns:
            int32 [n]: the rest of the last page, then whole pages, then the head of a new one.
        """
        ...

    def pages_needed_by_all(self, lengths: Counts, n: int) -> int:
        """New pages that `n` more tokens of each of some sequences take together."""
        ...

    def alloc_extend_all(self, last_slots: Slots, lengths: Counts, n: int) -> Slots | None:
        """`alloc_extend` by the same `n` for many sequences at once: for all of them, or for none.

        Args:
            last_slots: int32 [k], not read where a length is 0.
            lengths: int32 [k].
            n: tokens to add to each.

        Returns:
            int32 [k, n]; None when too few are free for all.
        """
        ...

    def free(self, slots: Slots) -> None:
        """Give back the pages that hold `slots`, given page by page, each from its first slot on.

        A page may be named in part (a sequence that ends inside it names only the slots it used):
        the page is given back whole.

        Raises:
            OwnershipError: a page is free already, is named twice, is not of this allocator, or is
                named without its first slot. Nothing is freed then.
        """
        ...

    def free_group(self) -> AbstractContextManager[None]:
        """Inside, frees are collected; they happen as one at the end, also after an exception."""
        ...

    def free_slots(self) -> Slots:
        """int32 [available], the slots that nobody owns; for checks, in no particular order."""
        ...

    def quarantine(self, slots: Slots) -> None:
        """Take the pages that hold some slots out of use for good, whoever has them.

        They are not handed out any more, and stay out when they are given back, be it twice.
        """
        ...

    def quarantined_slots(self) -> Slots:
        """int32 [n], the slots that are out of use; they do not count in `capacity`."""
        ...


_TRUE = np.ones(1, np.bool_)
"""What the plain `True` would be made into first, for as long as all the rest of an allocation."""


class PageAllocator:
    """Hands out pages of `page_size` slots from a stack: the page freed last goes first.

    A stack keeps the pages in use few and warm: a buffer that is touched lazily grows with the peak
    of what is used, not with time.
    """

    def __init__(self, capacity: int, page_size: int) -> None:
        if page_size < 1 or page_size & (page_size - 1):
            raise ValueError(f"page_size {page_size} is no power of two: use 1, 2, 4, 8, 16, ...")
        if capacity < page_size:
            raise ValueError(
                f"a capacity of {capacity} tokens holds no page of {page_size}: "
                "raise the capacity or use smaller pages"
            )
        self._page_size = page_size
        self._shift = page_size.bit_length() - 1
        self._num_pages = capacity >> self._shift
        self._offsets = np.arange(page_size, dtype=np.int32)
        # Pages are numbered from 1. The top of the stack is at `_num_free`; its page goes first.
        self._stack = np.arange(self._num_pages, 0, -1, dtype=np.int32)
        self._num_free = self._num_pages
        self._in_use = np.zeros(self._num_pages + 1, np.bool_)
        self._seen_at = np.zeros(self._num_pages + 1, np.int32)
        self._out = np.zeros(self._num_pages + 1, np.bool_)
        self._num_out = 0
        self._group: list[Slots] | None = None

    @property
    def page_size(self) -> int:
        """Slots per page."""
        return self._page_size

    @property
    def capacity(self) -> int:
        """Slots that can be handed out."""
        return (self._num_pages - self._num_out) << self._shift

    @property
    def num_slots(self) -> int:
        """Slots that a KV buffer must have."""
        return (self._num_pages + 1) << self._shift

    @property
    def available(self) -> int:
        """Slots in free pages."""
        return self._num_free << self._shift

    def pages_needed(self, length: int, n: int) -> int:
        """New pages that `n` more tokens of a sequence of `length` tokens take."""
        mask = self._page_size - 1
        return ((length + n + mask) >> self._shift) - ((length + mask) >> self._shift)

    def alloc_extend(self, last_slot: int, length: int, n: int) -> Slots | None:
        """Slots int32 [n] that continue a sequence, or None; see `SlotAllocator.alloc_extend`."""
        if n < 0 or length < 0:
            raise ValueError(
                f"cannot add {n} tokens to {length}: give counts that are not negative"
            )
        mask = self._page_size - 1
        rest = min(-length & mask, n)
        if rest:
            self._check_last(last_slot, length)
        num_pages = self.pages_needed(length, n)
        if num_pages > self._num_free:
            return None
        pages = self._take(num_pages)
        fresh = pages if self._page_size == 1 else self._slots_of(pages)[: n - rest]
        if not rest:
            return fresh
        head = np.arange(last_slot + 1, last_slot + 1 + rest, dtype=np.int32)
        return np.concatenate((head, fresh)) if num_pages else head

    def pages_needed_by_all(self, lengths: Counts, n: int) -> int:
        """New pages that `n` more tokens of each sequence take together."""
        if self._page_size == 1:
            return len(lengths) * n
        if n == 1:
            return int(np.count_nonzero(self._on_page(lengths)))
        return int(self._new_pages(lengths, n).sum())

    def alloc_extend_all(self, last_slots: Slots, lengths: Counts, n: int) -> Slots | None:
        """Slots int32 [k, n] that continue k sequences, or None; see `alloc_extend_all` of
        `SlotAllocator`.
        """
        num_pages = self.pages_needed_by_all(lengths, n)
        if num_pages > self._num_free:
            return None
        if self._page_size == 1:
            return self._take(num_pages).reshape(len(lengths), n)
        self._check_all_last(last_slots, lengths)
        offsets: Slots = np.arange(n, dtype=np.int32)
        slots: Slots = np.add.outer(last_slots + 1, offsets)
        if not num_pages:
            return slots
        if n == 1:
            fresh = self._on_page(lengths)
            slots[fresh, 0] = self._take(num_pages) << self._shift
            return slots
        # A token's page among the new ones of its sequence; below 0, it is in the last one still.
        positions: Counts = np.add.outer(lengths, offsets)
        page = (positions >> self._shift) - self._pages_of_length(lengths)[:, None]
        fresh = page >= 0
        needed = self._new_pages(lengths, n)
        page += (np.cumsum(needed) - needed)[:, None]  # from here on, among those of all sequences
        pages = self._take(num_pages)
        slots[fresh] = (pages[page[fresh]] << self._shift) + (
            positions[fresh] & (self._page_size - 1)
        )
        return slots

    def free(self, slots: Slots) -> None:
        """Give back the pages that hold `slots`; see `SlotAllocator.free`."""
        if not len(slots):
            return
        if self._group is not None:
            self._group.append(np.array(slots, np.int32))
        else:
            self._give(self._pages_of(slots))

    @contextmanager
    def free_group(self) -> Iterator[None]:
        """Inside, frees are collected; an inner group joins the outer one."""
        if self._group is not None:
            yield
            return
        self._group = []
        try:
            yield
        finally:
            batch, self._group = self._group, None
            if batch:
                self._give(self._pages_of(np.concatenate(batch)))

    def free_slots(self) -> Slots:
        """int32 [available], the slots that nobody owns."""
        return self._slots_of(self._stack[: self._num_free])

    def quarantine(self, slots: Slots) -> None:
        """Take the pages that hold some slots out of use for good; see `SlotAllocator`."""
        pages = np.unique(slots >> self._shift)
        pages = pages[(pages >= 1) & (pages <= self._num_pages)]
        self._out[pages] = True
        self._num_out = int(np.count_nonzero(self._out))
        free = self._stack[: self._num_free]
        kept = free[~self._out[free]]
        self._num_free = len(kept)
        self._stack[: self._num_free] = kept

    def quarantined_slots(self) -> Slots:
        """int32 [n], the slots that are out of use."""
        return self._slots_of(np.flatnonzero(self._out).astype(np.int32))

    def _check_last(self, last_slot: int, length: int) -> None:
        """Refuse to fill up a page that is not the sequence's."""
        offset, expected = last_slot % self._page_size, (length - 1) % self._page_size
        if offset != expected:
            raise ValueError(
                f"slot {last_slot} cannot hold token {length - 1}: it is at offset {offset} of its "
                f"page of {self._page_size}, the token at {expected}; give the last token's slot"
            )
        page = last_slot >> self._shift
        if not (1 <= page <= self._num_pages and self._in_use[page]):
            raise OwnershipError(
                f"slot {last_slot} is in no page that is handed out: continue from a slot you own"
            )

    def _check_all_last(self, last_slots: Slots, lengths: Counts) -> None:
        """`_check_last` of every sequence that has a partial page."""
        pages = last_slots >> self._shift
        sound = self._on_page(last_slots + 1 - lengths)
        sound &= pages <= self._num_pages
        sound &= self._in_use.take(pages, mode="clip")  # page 0 is never in use
        sound |= self._on_page(lengths)
        if not sound.all():
            i = int(np.argmin(sound))
            self._check_last(int(last_slots[i]), int(lengths[i]))

    def _on_page(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of these are multiples of the page."""
        multiples: npt.NDArray[np.bool_] = (numbers & (self._page_size - 1)) == 0
        return multiples

    def _new_pages(self, lengths: Counts, n: int) -> Counts:
        return self._pages_of_length(lengths + n) - self._pages_of_length(lengths)

    def _pages_of_length(self, lengths: Counts) -> Counts:
        """Pages that sequences of these lengths take, partial ones counted."""
        return (lengths + (self._page_size - 1)) >> self._shift

    def _slots_of(self, pages: Slots) -> Slots:
        slots: Slots = ((pages[:, None] << self._shift) + self._offsets).reshape(-1)
        return slots

    def _pages_of(self, slots: Slots) -> Slots:
        if self._page_size == 1:
            return slots
        first = (slots & (self._page_size - 1)) == 0
        follows = np.zeros(len(slots), np.bool_)
        np.equal(slots[1:], slots[:-1] + 1, out=follows[1:])
        stray = slots[~(first | follows)]
        if len(stray):
            raise OwnershipError(
                f"slots {shortened(stray)} are freed without the slots before them in their pages "
                f"of {self._page_size}: a page is given back whole, from its first slot on"
            )
        pages: Slots = slots[first] >> self._shift
        return pages

    def _take(self, n: int) -> Slots:
        rest = self._num_free - n
        pages = self._stack[rest : self._num_free][::-1].copy()
        self._num_free = rest
        self._in_use[pages] = _TRUE
        return pages

    def _give(self, pages: Slots) -> None:
        if len(pages) and (pages.min() < 1 or pages.max() > self._num_pages):
            foreign = pages[(pages < 1) | (pages > self._num_pages)]
            raise OwnershipError(
                f"slots {self._named(foreign)} are not of this allocator: "
                f"its slots are {self._page_size} to {self.num_slots - 1}"
            )
        if self._num_out:
            pages = pages[~self._out[pages]]
        index = pages.astype(np.intp)  # once here, not in each of the operations below
        # A page that is named twice is seen last at another index than its first one's.
        order = np.arange(len(pages), dtype=np.int32)
        self._seen_at[index] = order
        sound = self._in_use[index] & (self._seen_at[index] == order)
        if not sound.all():
            raise OwnershipError(
                f"slots {self._named(pages[~sound])} are freed twice: an owner gives a slot back "
                "once and forgets it"
            )
        self._in_use[index] = False
        self._stack[self._num_free : self._num_free + len(pages)] = pages[::-1]
        self._num_free += len(pages)

    def _named(self, pages: Slots) -> str:
        return shortened(self._slots_of(pages))


class TokenAllocator(PageAllocator):
    """Hands out single slots: pages of one token."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, page_size=1)
