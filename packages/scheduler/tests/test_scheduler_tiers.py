"""A cache below the device changes how much is computed, never what comes out, whatever it does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phloem.mem_pool import ArrayTransfer, HostTier, PageAllocator, StoredBlocks

MAX_NEW = 12


class MoodyTransfer(ArrayTransfer):
    """Copies at once or fails, as its moods say in turn; some copies are never said to be done."""

    def __init__(self, kv, num_slots, moods):
        super().__init__(kv, np.full((num_slots, 2), -1, kv.dtype))
        self._moods = itertools.cycle(moods or ["works"])

    def backup(self, device_slots, host_slots):
        mood = next(self._moods)
        if mood == "refuses":
            raise OSError("no copies today")
        super().backup(device_slots, host_slots)
        return mood

    def done(self, ticket, wait=0.0):
        if ticket == "fails":
            raise OSError("this copy failed")
        return ticket != "hangs"

    def load(self, host_slots, device_slots):
        if next(self._moods) == "refuses":
            self.device[device_slots] = -1
            raise OSError("no copies today")
        super().load(host_slots, device_slots)


class Memory:
    """A store in memory that forgets every so many blocks."""

    def __init__(self, forgets):
        self.blocks, self._forgets, self._asked = {}, forgets, 0

    def find(self, names):
        return next((i for i, n in enumerate(names) if n not in self.blocks), len(names))

    def get(self, name):
        self._asked += 1
        lost = self._forgets and self._asked % self._forgets == 0
        return None if lost else self.blocks.get(name)

    def put(self, name, data, *, replace=False):
        self.blocks[name] = data

    def close(self):
        pass


def make_tiers(host, moods, store, page_size, clock):
    """What `Harness(tiers=)` takes."""

    def make(tree, kv):
        slots = PageAllocator(host, page_size)
        transfer = MoodyTransfer(kv, slots.num_slots, moods)
        stored = None if store is None else StoredBlocks(store, transfer, "script", page_size)
        return HostTier(tree, slots, transfer, stored, budget=64, clock=clock)

    return make


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 3), st.sampled_from([70, 20, 5]), st.lists(st.integers(1, 9), max_size=9)
    ),
    min_size=4,
    max_size=14,
)
WORKS = st.just(["works"])
FAULTY = st.lists(st.sampled_from(["refuses", "fails", "hangs"]), min_size=1, max_size=3)
MOODS = WORKS | st.builds(lambda good, bad: ["works"] * good + bad, st.integers(0, 12), FAULTY)


@given(
    requests=REQUESTS,
    moods=MOODS,
    forgets=st.sampled_from([None, 0, 3]),
    page_size=st.sampled_from([1, 4]),
    overlap=st.booleans(),
    capacity=st.sampled_from([120, 200]),
    host=st.sampled_from([600, 100]),
    chunk=st.sampled_from([None, 16]),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_outputs_are_those_of_each_request_alone(
    harness, output_alone, requests, moods, forgets, page_size, overlap, capacity, host, chunk
):
    store = None if forgets is None else Memory(forgets)
    seconds = itertools.count()
    for _ in range(2):  # two lives of the process
        h = harness(
            capacity=capacity,
            page_size=page_size,
            overlap=overlap,
            chunked_prefill_size=chunk,
            max_running_requests=4,
            tiers=make_tiers(host, moods, store, page_size, lambda: next(seconds) / 10),
        )
        for i, (stem, shared, own) in enumerate(requests):
            h.add(f"r{i}", [*[stem] * shared, *own], max_new_tokens=MAX_NEW)
            for _ in range(i % 3 * 8):
                h.step()
        outputs = h.run()
        for i, (stem, shared, own) in enumerate(requests):
            got = outputs[f"r{i}"]
            assert got.token_ids == output_alone([*[stem] * shared, *own], MAX_NEW)
            assert got.finish_reason.type in ("stop", "length"), got.finish_reason
        no_mistakes(h.manager.tiers)
        h.manager.tiers.close()


def no_mistakes(tiers):
    """What fails here does so on purpose, with an `OSError`; anything else is a bug of ours."""
    assert tiers.health.mistakes == 0
    assert tiers.stored is None or tiers.stored.health.mistakes == 0


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("host_values", [None, "numpy"])
def test_a_process_that_starts_again_has_what_the_one_before_computed(
    harness, output_alone, overlap, page_size, host_values
):
    store = Memory(forgets=0)
    prompts = [[i + 1] * 96 for i in range(3)]
    for life in range(2):
        h = harness(
            page_size=page_size,
            overlap=overlap,
            host_values=host_values,
            tiers=make_tiers(600, ["works"], store, page_size, lambda: 0.0),
        )
        for i, prompt in enumerate(prompts):
            h.add(f"r{i}", prompt, max_new_tokens=4)
            out = h.run()[f"r{i}"]
            assert out.token_ids == output_alone(prompt, 4)
            # The last token is always computed, with its page.
            assert out.last.cached_tokens == (0 if life == 0 else 96 - page_size)
            assert out.last.brought == (None if life == 0 else (0, 96 - page_size))
        assert h.manager.tiers.stored.health.failures == 0
        no_mistakes(h.manager.tiers)
        h.manager.tiers.close()
    assert h.manager.tiers.stats.restored == 3 * (96 - page_size)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_working_set_of_three_times_the_pool_keeps_its_hits(harness, overlap, page_size):
    h = harness(
        capacity=200,
        page_size=page_size,
        overlap=overlap,
        tiers=make_tiers(1000, ["works"], None, page_size, lambda: 0.0),
    )
    prompts = [[i + 1] * 96 for i in range(6)]
    for turn in range(3):
        for i, prompt in enumerate(prompts):
            h.add(f"{turn}-{i}", prompt, max_new_tokens=2)
            h.run()
    found = [
        h.outputs[f"{turn}-{i}"].last.cached_tokens for turn in (1, 2) for i in range(len(prompts))
    ]
    assert sum(found) >= 0.9 * 95 * len(found)
    no_mistakes(h.manager.tiers)
