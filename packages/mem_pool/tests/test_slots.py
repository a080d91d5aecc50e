import contextlib

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from phloem.mem_pool import OwnershipError, PageAllocator, TokenAllocator


def slots(*ids):
    return np.array(ids, np.int32)


def test_token_slots_start_at_one_and_end_at_the_capacity():
    allocator = TokenAllocator(5)
    assert allocator.alloc_extend(-1, 0, 5).tolist() == [1, 2, 3, 4, 5]
    assert allocator.alloc_extend(5, 5, 1) is None
    assert (allocator.num_slots, allocator.available) == (6, 0)


def test_the_padding_page_is_never_handed_out():
    allocator = PageAllocator(capacity=19, page_size=4)
    assert (allocator.capacity, allocator.num_slots) == (16, 20)
    assert allocator.alloc_extend(-1, 0, 16).tolist() == list(range(4, 20))


def test_a_sequence_first_fills_its_partial_page_then_whole_pages_then_a_new_one():
    allocator = PageAllocator(capacity=64, page_size=4)
    assert allocator.alloc_extend(-1, 0, 6).tolist() == [4, 5, 6, 7, 8, 9]
    other = allocator.alloc_extend(-1, 0, 1)
    assert other.tolist() == [12]
    assert allocator.alloc_extend(9, 6, 8).tolist() == [10, 11, 16, 17, 18, 19, 20, 21]
    assert allocator.available == 64 - 5 * 4


def test_filling_up_a_page_takes_no_page():
    allocator = PageAllocator(capacity=4, page_size=4)
    allocator.alloc_extend(-1, 0, 1)
    assert allocator.pages_needed(1, 3) == 0
    assert allocator.alloc_extend(4, 1, 3).tolist() == [5, 6, 7]


def test_nothing_is_taken_when_too_few_are_free():
    allocator = PageAllocator(capacity=8, page_size=4)
    allocator.alloc_extend(-1, 0, 2)
    assert allocator.alloc_extend(5, 2, 7) is None
    assert allocator.available == 4
    assert allocator.alloc_extend(5, 2, 6).tolist() == [6, 7, 8, 9, 10, 11]


def test_a_partly_named_page_is_freed_whole():
    allocator = PageAllocator(capacity=16, page_size=4)
    allocator.free(allocator.alloc_extend(-1, 0, 5))
    assert allocator.available == 16


def test_freed_slots_are_handed_out_again_in_the_same_order():
    allocator = PageAllocator(capacity=64, page_size=4)
    taken = allocator.alloc_extend(-1, 0, 23)
    allocator.free(taken)
    assert allocator.alloc_extend(-1, 0, 23).tolist() == taken.tolist()


@pytest.mark.parametrize("named", [(5,), (4, 6), (4, 5, 9), (4, 5, 4, 6)])
def test_slots_without_the_ones_before_them_in_their_page_are_refused(named):
    allocator = PageAllocator(capacity=16, page_size=4)
    allocator.alloc_extend(-1, 0, 8)
    with pytest.raises(OwnershipError):
        allocator.free(slots(*named))
    assert allocator.available == 8


@pytest.mark.parametrize("named", [(0,), (-1,), (9,), (1, 9)])
def test_foreign_slots_are_refused_and_nothing_is_freed(named):
    allocator = TokenAllocator(8)
    allocator.alloc_extend(-1, 0, 8)
    with pytest.raises(OwnershipError, match="are not of this allocator: its slots are 1 to 8"):
        allocator.free(slots(*named))
    assert allocator.available == 0


def test_a_slot_freed_twice_is_named_and_nothing_else_is_freed():
    allocator = TokenAllocator(8)
    allocator.alloc_extend(-1, 0, 4)
    allocator.free(slots(2))
    with pytest.raises(OwnershipError, match=r"slots \[2\] are freed twice"):
        allocator.free(slots(1, 2, 3))
    assert allocator.available == 5


def test_a_page_named_twice_in_one_free_is_refused():
    allocator = PageAllocator(capacity=16, page_size=2)
    allocator.alloc_extend(-1, 0, 4)
    with pytest.raises(OwnershipError, match=r"slots \[2, 3\] are freed twice"):
        allocator.free(slots(2, 3, 4, 5, 2, 3))
    assert allocator.available == 12


def test_a_group_of_frees_takes_effect_at_its_end():
    allocator = TokenAllocator(8)
    taken = allocator.alloc_extend(-1, 0, 6)
    with allocator.free_group():
        allocator.free(taken[:2])
        with allocator.free_group():
            allocator.free(taken[2:4])
        assert allocator.available == 2
    assert allocator.available == 6


def test_a_group_keeps_its_frees_when_the_buffer_is_reused():
    allocator = TokenAllocator(8)
    taken = allocator.alloc_extend(-1, 0, 2)
    with allocator.free_group():
        allocator.free(taken)
        taken[:] = 7
    assert allocator.available == 8


def test_a_group_frees_also_after_an_exception():
    allocator = TokenAllocator(8)
    taken = allocator.alloc_extend(-1, 0, 6)
    with contextlib.suppress(KeyError), allocator.free_group():
        allocator.free(taken)
        raise KeyError
    assert allocator.available == 8


def test_a_double_free_across_a_group_is_found_at_its_end():
    allocator = TokenAllocator(8)
    taken = allocator.alloc_extend(-1, 0, 6)
    group = contextlib.ExitStack()
    group.enter_context(allocator.free_group())
    allocator.free(taken)
    allocator.free(taken[3:])
    with pytest.raises(OwnershipError, match=r"slots \[4, 5, 6\] are freed twice"):
        group.close()
    assert allocator.available == 2


def test_a_last_slot_at_the_wrong_offset_is_refused():
    allocator = PageAllocator(capacity=16, page_size=4)
    allocator.alloc_extend(-1, 0, 2)
    with pytest.raises(ValueError, match="slot 4 cannot hold token 1"):
        allocator.alloc_extend(4, 2, 1)


def test_a_last_slot_in_a_free_page_is_refused():
    allocator = PageAllocator(capacity=16, page_size=4)
    with pytest.raises(OwnershipError, match="slot 5 is in no page"):
        allocator.alloc_extend(5, 2, 1)


def test_of_many_sequences_one_with_a_wrong_last_slot_refuses_all():
    allocator = PageAllocator(capacity=32, page_size=4)
    for length in (4, 2):
        allocator.alloc_extend(-1, 0, length)
    lengths = slots(4, 2)
    with pytest.raises(ValueError, match="slot 8 cannot hold token 1"):
        allocator.alloc_extend_all(slots(7, 8), lengths, 1)
    with pytest.raises(OwnershipError, match="slot 13 is in no page"):
        allocator.alloc_extend_all(slots(7, 13), lengths, 1)
    assert allocator.available == 24
    assert allocator.alloc_extend_all(slots(7, 9), lengths, 1).tolist() == [[12], [10]]


@pytest.mark.parametrize("page_size", [0, -4, 3, 24])
def test_a_page_size_that_is_no_power_of_two_is_refused(page_size):
    with pytest.raises(ValueError, match=f"page_size {page_size} is no power of two"):
        PageAllocator(1024, page_size)


def test_a_capacity_below_a_page_is_refused():
    with pytest.raises(ValueError, match="a capacity of 15 tokens holds no page of 16"):
        PageAllocator(15, 16)


class AllocatorMachine(RuleBasedStateMachine):
    """An allocator beside a set of free pages and a list of slots per sequence."""

    sequences = Bundle("sequences")

    @initialize(page_size=st.sampled_from([1, 2, 4, 16]), pages=st.integers(1, 12))
    def create(self, page_size, pages):
        self.page = page_size
        self.allocator = (
            TokenAllocator(pages) if page_size == 1 else PageAllocator(pages * page_size, page_size)
        )
        self.free_pages = set(range(1, pages + 1))

    @rule(target=sequences)
    def start(self):
        return []

    @rule(sequence=sequences, n=st.integers(0, 40))
    def extend(self, sequence, n):
        needed = -(-(len(sequence) + n) // self.page) - -(-len(sequence) // self.page)
        assert self.allocator.pages_needed(len(sequence), n) == needed
        last = sequence[-1] if sequence else -1
        got = self.allocator.alloc_extend(last, len(sequence), n)
        if needed > len(self.free_pages):
            assert got is None
            return
        assert got.dtype == np.int32
        assert len(got) == n
        sequence += got.tolist()
        for position, slot in enumerate(sequence):
            assert slot % self.page == position % self.page
            if position % self.page:
                assert slot == sequence[position - 1] + 1
        fresh = [slot // self.page for slot in sequence[:: self.page]][-needed:] if needed else []
        assert len(set(fresh)) == needed
        assert self.free_pages.issuperset(fresh)
        self.free_pages.difference_update(fresh)

    @rule(target=sequences, sequence=consumes(sequences), keep=st.integers(0, 4))
    def shrink(self, sequence, keep):
        start = keep * self.page
        self.allocator.free(slots(*sequence[start:]))
        self.free_pages.update(slot // self.page for slot in sequence[start:])
        return sequence[:start] if start < len(sequence) else sequence

    @rule(chosen=st.lists(consumes(sequences), max_size=4))
    def free_in_a_group(self, chosen):
        with self.allocator.free_group():
            for sequence in chosen:
                self.allocator.free(slots(*sequence))
        self.free_pages.update(slot // self.page for sequence in chosen for slot in sequence)

    @rule(target=sequences, sequence=consumes(sequences))
    def free_twice(self, sequence):
        if not sequence:
            return multiple(sequence)
        with pytest.raises(OwnershipError):
            self.allocator.free(slots(*sequence, *sequence))
        self.allocator.free(slots(*sequence))
        self.free_pages.update(slot // self.page for slot in sequence)
        with pytest.raises(OwnershipError):
            self.allocator.free(slots(*sequence))
        return multiple()

    @invariant()
    def free_slots_equal_the_model(self):
        expected = [
            page * self.page + offset for page in self.free_pages for offset in range(self.page)
        ]
        assert self.allocator.available == len(expected)
        assert sorted(self.allocator.free_slots().tolist()) == sorted(expected)


AllocatorMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestAllocatorMachine = AllocatorMachine.TestCase
