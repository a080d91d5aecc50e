"""Bytes between a pool, the host and a store: whatever the layout, they come back as they were."""

import itertools
import threading

import numpy as np
import pytest
import torch

from phloem.mem_pool.kv import DTYPES, KVPool, KVShape
from phloem.mem_pool.kv_transfer import HostKVPool, KVTransfer, LayerProgress

LAYERS = 3


def ids(*values):
    return np.array(values, np.int32)


def layers(pool, slots):
    at = torch.from_numpy(slots.astype(np.int64))
    return [part for i in range(LAYERS) for part in pool.gather(i, at)]


@pytest.fixture(params=itertools.product(DTYPES, ("token", "page")), ids="-".join)
def pool(request):
    dtype, layout = request.param
    made = KVPool(32, KVShape(LAYERS, 2, 4, DTYPES[dtype]), page_size=4, layout=layout)
    for i in range(LAYERS):
        made.store(i, torch.arange(32), *torch.randn(2, 32, 2, 4))
    return made


@pytest.fixture(params=[True, False], ids=["at once", "beside"])
def transfer(request, pool):
    made = KVTransfer(pool, HostKVPool(16, pool), wait_for_loads=request.param)
    yield made
    made.close()


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_what_went_to_the_host_comes_back_to_other_slots(pool, transfer):
    before = layers(pool, ids(5, 9, 2))
    ticket = transfer.backup(ids(5, 9, 2), ids(1, 2, 15))
    assert transfer.done(ticket, wait=10.0)
    assert transfer.done(ticket)
    transfer.load(ids(2, 15, 1), ids(20, 21, 22))
    for layer in range(LAYERS):
        transfer.ready(layer)
    assert equal(layers(pool, ids(22, 20, 21)), before)


def test_what_was_read_is_written_by_another_process_and_loaded(pool, transfer):
    given = []
    before = layers(pool, ids(5, 6, 7))
    transfer.backup(ids(5, 6, 7), ids(1, 2, 3))
    transfer.read(ids(1, 2, 3), given.append)
    transfer.close()
    other = KVPool(8, pool.shape)
    assert other.fingerprint == pool.fingerprint
    fresh = KVTransfer(other, HostKVPool(8, other))
    assert len(given[0]) == 3 * fresh.bytes_per_token == 3 * pool.shape.bytes_per_token
    fresh.write(ids(4, 6), bytes(given[0])[fresh.bytes_per_token :])
    fresh.load(ids(4, 6), ids(1, 2))
    assert equal(layers(other, ids(1, 2)), [part[1:] for part in before])
    fresh.close()


def test_copies_are_made_in_the_order_in_which_they_were_asked_for(pool, transfer):
    """Slots that change hands while copies are on their way hold what the last one brought."""
    first, second = layers(pool, ids(1)), layers(pool, ids(2))
    transfer.backup(ids(1), ids(7))
    transfer.load(ids(7), ids(20))
    transfer.backup(ids(2), ids(7))
    transfer.load(ids(7), ids(21))
    transfer.close()
    assert equal(layers(pool, ids(20)), first)
    assert equal(layers(pool, ids(21)), second)


def test_a_copy_that_fails_is_told_and_those_after_it_are_made(pool):
    transfer = KVTransfer(pool, HostKVPool(16, pool))
    with pytest.raises(IndexError):
        transfer.done(transfer.backup(ids(1), ids(99)), wait=10.0)
    with pytest.raises(IndexError):
        transfer.load(ids(99), ids(1))
    assert transfer.done(transfer.backup(ids(1), ids(2)), wait=10.0)
    transfer.close()


def test_a_load_beside_the_model_that_fails_fails_the_steps_that_come(pool):
    transfer = KVTransfer(pool, HostKVPool(16, pool), wait_for_loads=False)
    transfer.load(ids(99), ids(1))
    with pytest.raises(RuntimeError, match="could not be brought back"):
        transfer.ready(0)
    transfer.close()


def test_data_of_another_length_are_refused(pool, transfer):
    with pytest.raises(ValueError, match="are not 2 tokens"):
        transfer.write(ids(1, 2), b"short")


class TestLayerProgress:
    def test_a_layer_is_waited_for_and_no_other(self):
        progress = LayerProgress(2)
        progress.wait(1)  # nothing was asked for
        progress.begin()
        progress.reach(0)
        progress.wait(0)
        waiting, passed = threading.Event(), threading.Event()

        def model():
            waiting.set()
            progress.wait(1)
            passed.set()

        thread = threading.Thread(target=model)
        thread.start()
        waiting.wait(10)
        assert not passed.is_set()
        progress.reach(1)
        assert passed.wait(10)
        thread.join()

    def test_every_load_asked_for_is_waited_for_not_only_the_first(self):
        progress = LayerProgress(1)
        progress.begin()
        progress.begin()
        progress.reach(0)
        thread = threading.Thread(target=progress.wait, args=(0,))
        thread.start()
        assert thread.is_alive()
        progress.reach(0)
        thread.join(10)
        assert not thread.is_alive()

    def test_a_failure_ends_the_waiting(self):
        progress = LayerProgress(1)
        progress.begin()
        progress.fail(OSError("gone"))
        with pytest.raises(RuntimeError, match="gone"):
            progress.wait(0)


def test_the_host_pool_has_one_record_for_each_slot(pool):
    host = HostKVPool(5, pool)
    assert host.records.shape == (5, LAYERS, pool.shape.bytes_per_token // LAYERS)
