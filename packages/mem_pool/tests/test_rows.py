import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.mem_pool import OwnershipError, RowTable


def test_lowest_free_row_goes_first():
    rows = RowTable(max_rows=3, max_len=8)
    assert [rows.alloc() for _ in range(4)] == [0, 1, 2, None]
    rows.free(2)
    rows.free(0)
    assert [rows.alloc(), rows.alloc()] == [0, 2]


def test_generation_tells_that_a_row_was_reused():
    rows = RowTable(max_rows=2, max_len=8)
    row = rows.alloc()
    seen = rows.generation[row]
    rows.free(row)
    assert rows.alloc() == row
    assert rows.generation[row] == seen + 1


def test_a_row_freed_twice_is_refused_and_stays_free_once():
    rows = RowTable(max_rows=2, max_len=8)
    row = rows.alloc()
    rows.free(row)
    with pytest.raises(OwnershipError, match="row 0 is free already"):
        rows.free(row)
    assert rows.available == 2


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_of_another_table_is_refused(row):
    with pytest.raises(OwnershipError, match="is not of this table"):
        RowTable(max_rows=2, max_len=8).free(row)


@pytest.mark.parametrize(("max_rows", "max_len"), [(0, 8), (8, 0)])
def test_a_table_without_room_is_refused(max_rows, max_len):
    with pytest.raises(ValueError, match="holds nothing"):
        RowTable(max_rows, max_len)


@given(st.lists(st.integers(-1, 4)))
def test_rows_behave_like_a_sorted_set(operations):
    """-1 takes a row, another number gives that row back."""
    rows, free, taken = RowTable(max_rows=4, max_len=1), {0, 1, 2, 3}, [0] * 4
    for operation in operations:
        if operation < 0:
            expected = min(free, default=None)
            assert rows.alloc() == expected
            if expected is not None:
                free.remove(expected)
                taken[expected] += 1
        elif operation in free or operation > 3:
            with pytest.raises(OwnershipError):
                rows.free(operation)
        else:
            rows.free(operation)
            free.add(operation)
        assert rows.available == len(free)
        assert rows.generation.tolist() == taken
