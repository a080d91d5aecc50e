import numpy as np
import pytest

from phloem.mem_pool import ArrayTransfer


def ids(*values):
    return np.array(values, np.int32)


def test_records_go_down_come_back_and_through_bytes():
    transfer = ArrayTransfer(np.arange(20).reshape(10, 2), np.zeros((4, 2), np.int64))
    assert transfer.done(transfer.backup(ids(7, 3), ids(1, 2)))
    transfer.load(ids(2, 1), ids(0, 1))
    assert transfer.device[:2].tolist() == [[6, 7], [14, 15]]
    given = []
    transfer.read(ids(1), given.append)
    assert len(given[0]) == transfer.bytes_per_token == 16
    transfer.write(ids(3), given[0])
    assert transfer.host[3].tolist() == [14, 15]


def test_arrays_of_different_records_are_refused():
    with pytest.raises(ValueError, match="make both arrays alike"):
        ArrayTransfer(np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match="make both arrays alike"):
        ArrayTransfer(np.zeros(4), np.zeros(4, np.int32))
