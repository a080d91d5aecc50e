"""Readers beside the one writer: `peek`, `sizes`, `stats`, `namespaces`, `explain` and `render`.

Threads change over between two bytecodes of the interpreter, so two tests try every place between
two that touch an object: all readers at each such place in a writer's operation, and a writer's
whole operation at each such place in a reader. One more lets real threads run.
"""

import json
import queue
import random
import sys
import threading
from dis import opname
from functools import partial
from itertools import count

import pytest

from phloem.radix_cache import Key, RadixCache, Tier

TOUCHING = (
    "LOAD_ATTR",
    "LOAD_METHOD",
    "STORE_ATTR",
    "STORE_SUBSCR",
    "DELETE_SUBSCR",
    "BINARY_SUBSCR",
    "CALL",
    "FOR_ITER",
)
WAITING = object()
"""What a reader has to say while the writer is in the middle of something that it waits for."""

STEM = list(range(8))
BRANCH = [0, 1, 2, 103, 104]
TWIG = [*BRANCH, 205]
KEYS = [
    Key([0, 1, 2, 999]),
    Key([*STEM[:6], 999]),
    Key([*STEM, 999]),
    Key([0, 1, 2, 3, 304, 305]),
    Key(TWIG),
    Key(STEM, ("b",)),
]


def put(cache, tokens, namespace=()):
    return cache.insert(Key(tokens, namespace), list(tokens))


def grown():
    """Two namespaces; a token says where it stands, as its position and 100 for each branch."""
    cache = RadixCache(clock=count().__next__, host_tier=True)
    for tokens in (STEM, BRANCH, TWIG):
        put(cache, tokens)
    put(cache, STEM[:4], ("b",))
    return cache


def backed_up(cache):
    for backup in cache.backups():
        cache.backed_up(backup, backup.values())
    return cache


def only_on_host():
    cache = backed_up(grown())
    cache.evict(100)
    return cache


def insert_that_splits():
    cache = grown()
    return cache, lambda: put(cache, [0, 1, 2, 3, 304, 305])


def match_that_splits():
    cache = grown()
    return cache, lambda: cache.match(Key(STEM[:5]))


def lock():
    cache = grown()
    found = cache.match(Key(TWIG))
    return cache, lambda: cache.lock(found)


def unlock():
    cache = grown()
    receipt = cache.lock(cache.match(Key(TWIG)))
    return cache, lambda: cache.unlock(receipt)


def cut_a_leaf():
    cache = grown()
    return cache, lambda: cache.evict(2)


def evict_all():
    cache = grown()
    return cache, lambda: cache.evict(100)


def cut_a_leaf_that_the_host_has():
    cache = backed_up(grown())
    return cache, lambda: cache.evict(2)


def evict_the_host_tier():
    cache = only_on_host()
    return cache, lambda: cache.evict(100, Tier.HOST)


def begin_backups():
    cache = grown()
    return cache, cache.backups


def end_a_backup():
    cache = grown()
    backup = cache.backups()[0]
    return cache, lambda: cache.backed_up(backup, backup.values())


def begin_a_load():
    cache = only_on_host()
    found = cache.match(Key(TWIG))
    return cache, lambda: cache.load(found)


def end_a_load():
    cache = only_on_host()
    load = cache.load(cache.match(Key(TWIG)))
    return cache, lambda: cache.loaded(load, load.values())


def insert_over_the_host_part():
    cache = only_on_host()
    return cache, lambda: put(cache, STEM[:5])


def drop_a_namespace():
    cache = backed_up(grown())
    return cache, lambda: cache.drop(())


def reset():
    cache = grown()
    return cache, cache.reset


OPERATIONS = [
    insert_that_splits,
    match_that_splits,
    lock,
    unlock,
    cut_a_leaf,
    evict_all,
    cut_a_leaf_that_the_host_has,
    evict_the_host_tier,
    begin_backups,
    end_a_backup,
    begin_a_load,
    end_a_load,
    insert_over_the_host_part,
    drop_a_namespace,
    reset,
]


def peek(key, tier, cache):
    return [cache.peek(key, tier)]


def peeks(cache):
    return [cache.peek(key, tier) for tier in Tier for key in KEYS]


def explanation(key, cache):
    found = cache.explain(key)
    assert found.evicted >= 0, found.sentence
    return [found.device, found.device + found.host]


def explanations(cache):
    return [length for key in KEYS for length in explanation(key, cache)]


def numbers(cache):
    """Sizes as (evictable, protected, total) of each tier, one after the other."""
    sizes = cache.sizes
    return [
        number
        for tier in (sizes, sizes.host)
        for number in (tier.evictable, tier.protected, tier.total)
    ]


def counters(cache):
    stats = cache.stats
    assert 0 <= stats.hit_tokens <= stats.lookup_tokens
    assert 0 <= stats.hit_rate <= 1
    # A leaf that changes its place in the order is out of the index for a moment.
    return [value for name, value in stats._asdict().items() if name != "evictable_leaves"]


def picture(cache):
    """The render, each node of which shows tokens where they stand."""
    for space in json.loads(cache.render("json"))["namespaces"]:
        for node in space["nodes"]:
            start, end, first = node["start"], node["end"], node["first"]
            assert 0 <= start < end, node
            assert [token % 100 for token in first] == list(range(start, start + len(first))), node
            assert len(first) == min(end - start, 6), node


def namespaces(cache):
    return [namespace in cache.namespaces for namespace in ((), ("b",))]


READERS = [peeks, explanations, numbers, counters, picture, namespaces]


def check(reader, got, before, after):
    """What was read lies between the state before and the state after the operation."""
    if reader is picture:
        return
    for now, old, new in zip(got, before, after):
        assert min(old, new) <= now <= max(old, new), (reader.__name__, got, before, after)
    if reader is numbers:
        for evictable, protected, total in (got[:3], got[3:]):
            assert total == evictable + protected


class ReaderThread:
    """Reads on behalf of a traced thread, in one that gives up instead of waiting for it."""

    LINES = 5_000

    class GaveUp(Exception):
        pass

    def __init__(self):
        self.asked, self.answered = queue.SimpleQueue(), queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.asked.put(None)
        self.thread.join()

    def read(self, reader, cache):
        self.asked.put((reader, cache))
        answer = self.answered.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self):
        while (task := self.asked.get()) is not None:
            reader, cache = task
            self.left = self.LINES
            sys.settrace(self.count_down)
            try:
                answer = reader(cache)
            except self.GaveUp:
                answer = WAITING
            except BaseException as error:
                answer = error
            finally:
                sys.settrace(None)
            self.answered.put(answer)

    def count_down(self, frame, event, arg):
        if not is_of_the_package(frame):
            return None
        self.left -= 1
        if self.left < 0:
            raise self.GaveUp
        return self.count_down


def is_of_the_package(frame):
    return frame.f_globals.get("__name__", "").startswith("phloem.radix_cache")


def at_each_place(call, do, lines=False):
    """Run `call`, and `do` before each bytecode of the package that reads or writes an object.

    Before those that only move local values around, `do` would meet what the one before met. With
    `lines`, before each line.
    """

    def trace(frame, event, arg):
        if not is_of_the_package(frame):
            return None
        frame.f_trace_opcodes = not lines
        if event == "opcode":
            if opname[frame.f_code.co_code[frame.f_lasti]].startswith(TOUCHING):
                do()
        elif event == "line" and lines:
            do()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("prepare", OPERATIONS)
def test_readers_at_each_place_in_a_writer_see_the_tree_before_or_after_it(prepare):
    cache, operation = prepare()
    rows = []

    with ReaderThread() as thread:

        def look():
            rows.append([thread.read(reader, cache) for reader in READERS])

        look()
        at_each_place(operation, look)
        look()
    cache.check_integrity()
    assert len(rows) > 20
    # Nobody waits before the operation or after it, and only what follows nodes ever does.
    assert all(answer is not WAITING for row in (rows[0], rows[-1]) for answer in row)
    for row in rows:
        for reader, got, before, after in zip(READERS, row, rows[0], rows[-1]):
            if got is not WAITING:
                check(reader, got, before, after)
            else:
                assert reader in (peeks, explanations, picture)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("prepare", OPERATIONS)
def test_a_writer_at_any_place_in_a_reader_leaves_it_the_tree_before_or_after(prepare, reader):
    parts = {
        peeks: [partial(peek, key, tier) for tier in Tier for key in KEYS],
        explanations: [partial(explanation, key) for key in KEYS],
    }
    for part in parts.get(reader, [reader]):
        cache, operation = prepare()
        before = part(cache)
        operation()
        after = part(cache)
        for place in count():
            cache, operation = prepare()
            places = count()

            def write(place=place, places=places, operation=operation):
                if next(places) == place:
                    operation()

            got = at_each_place(
                partial(part, cache), write, lines=reader in (picture, explanations)
            )
            if next(places) <= place:
                break  # The reader came to its end before this place.
            check(reader, got, before, after)
        assert place > 3


def test_readers_beside_a_writing_thread_never_see_a_broken_state():
    cache = RadixCache(page_size=2, host_tier=True)
    failed = []

    def write():
        draw = random.Random(0)
        try:
            for _ in range(1500):
                put(cache, STEM * draw.randrange(1, 4) + BRANCH[3:] * draw.randrange(2))
                with cache.lock(cache.match(Key(STEM[: draw.randrange(9)]))):
                    for backup in cache.backups(draw.randrange(9)):
                        cache.backed_up(backup, backup.values())
                    cache.evict(draw.randrange(12), draw.choice(list(Tier)))
                if (found := cache.match(Key(STEM * 3))).host_length:
                    load = cache.load(found)
                    cache.loaded(load, load.values())
                if not draw.randrange(20):
                    cache.drop(())
            cache.check_integrity()
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writer.start()
        while writer.is_alive():
            for length in range(0, 24, 2):
                # A peek that follows nodes wrongly goes past the part that was ever inserted.
                tokens = [*(STEM * 3)[:length], 999, 999, *STEM]
                assert all(cache.peek(Key(tokens), tier) <= length for tier in Tier)
            cache.render()
            counters(cache)
            check(numbers, numbers(cache), [0] * 6, [100] * 6)
    finally:
        writer.join()
        sys.setswitchinterval(interval)
    assert not failed
