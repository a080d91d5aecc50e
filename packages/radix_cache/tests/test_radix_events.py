"""A listener that replays the events knows exactly which whole blocks each tier has."""

import json
import os
import struct
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from radix_ops_support import OPERATIONS, Life, stored_paths

from phloem.radix_cache import Key, RadixCache, Tier, events_wire
from phloem.radix_cache.events import (
    AllCleared,
    BlockRemoved,
    BlockStored,
    EventOptions,
    EventsLost,
    PrefixReused,
    _little_endian,
    block_hashes,
    namespace_seed,
)

BLOCK = 16


def plain_chain(namespace, tokens, size=BLOCK):
    """The documented formula, written a second time."""
    link = sha256(b"phloem.radix_cache.events.v1:" + plain_encoding(namespace)).digest()
    chain = []
    for at in range(0, len(tokens) - size + 1, size):
        link = sha256(link + struct.pack(f"<{size}i", *tokens[at : at + size])).digest()
        chain.append(link)
    return chain


def plain_encoding(part):
    if part is None:
        return b"N"
    if isinstance(part, int):
        return f"I{part:x};".encode()
    if isinstance(part, str):
        text = part.encode()
        return f"S{len(text)}:".encode() + text
    if isinstance(part, bytes):
        return f"B{len(part)}:".encode() + part
    return f"T{len(part)}:".encode() + b"".join(plain_encoding(each) for each in part)


class Listener:
    """Believes what it hears, and finds fault with what makes no sense."""

    def __init__(self, size=BLOCK):
        self.size = size
        self.blocks = {tier: {} for tier in Tier}

    def hear(self, events):
        for event in events:
            match event:
                case BlockStored():
                    self.store(event)
                case BlockRemoved():
                    self.remove(event)
                case AllCleared() | EventsLost():
                    self.blocks = {tier: {} for tier in Tier}

    def store(self, event):
        known = self.blocks[event.tier]
        assert event.block_size == self.size
        assert len(event.token_ids) == self.size * len(event.block_hashes)
        assert event.parent_hash is None or event.parent_hash in known
        previous = event.parent_hash or namespace_seed(event.namespace)
        for at, name in enumerate(event.block_hashes):
            tokens = event.token_ids[at * self.size : (at + 1) * self.size]
            assert name == sha256(previous + struct.pack(f"<{self.size}i", *tokens)).digest()
            assert name not in known
            known[name] = previous
            previous = name

    def remove(self, event):
        known = self.blocks[event.tier]
        for name in event.block_hashes:
            del known[name]
            assert name not in known.values(), "a block went before its child"


def blocks_in(cache, tier, size=BLOCK):
    return {
        name
        for namespace, tokens in stored_paths(cache, tier)
        for name in plain_chain(namespace, tokens, size)
    }


def check(listener, cache):
    for tier in Tier:
        assert set(listener.blocks[tier]) == blocks_in(cache, tier, listener.size)


def put(cache, tokens, namespace=(), **options):
    return cache.insert(Key(tokens, namespace), [0] * len(tokens), **options)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([1, 4, 16]), st.booleans(), st.sampled_from([7, 20, 10**6]), OPERATIONS)
def test_a_listener_that_replays_the_events_knows_what_is_stored(
    page_size, host_tier, capacity, operations
):
    life = Life(page_size, host_tier, {"events": EventOptions(BLOCK, capacity)})
    listener = Listener()
    for operation in [*operations, ("look",)]:
        life.do(*operation)
        if operation == ("look",):
            listener.hear(life.cache.take_events())
            check(listener, life.cache)
    late = Listener()
    late.hear(life.cache.take_events(resync=True))
    check(late, life.cache)


def test_events_are_off_by_default():
    cache = RadixCache()
    put(cache, range(64))
    assert cache.take_events() == []


def test_one_insert_is_one_event_and_taking_drains():
    cache = RadixCache(events=BLOCK)
    put(cache, range(40), ("x",))
    (stored,) = cache.take_events()
    assert stored == BlockStored(
        tuple(plain_chain(("x",), range(32))), None, tuple(range(32)), BLOCK, ("x",), Tier.DEVICE
    )
    assert cache.take_events() == []


def test_a_block_is_stored_when_its_last_token_comes():
    cache = RadixCache(events=BLOCK)
    put(cache, range(20))
    put(cache, range(31))
    assert [len(event.block_hashes) for event in cache.take_events()] == [1]
    put(cache, range(33))
    (stored,) = cache.take_events()
    first, second = plain_chain((), range(32))
    assert (stored.parent_hash, stored.block_hashes) == (first, (second,))
    assert stored.token_ids == tuple(range(16, 32))


def test_inserts_that_continue_each_other_are_one_event():
    cache = RadixCache(events=BLOCK)
    for end in (16, 40, 64):
        put(cache, range(end))
    (stored,) = cache.take_events()
    assert stored.block_hashes == tuple(plain_chain((), range(64)))
    assert stored.token_ids == tuple(range(64))


def test_evictions_side_by_side_are_one_event_with_children_before_parents():
    cache = RadixCache(events=BLOCK)
    put(cache, range(64))
    cache.take_events()
    cache.evict(1)
    cache.evict(31)
    (removed,) = cache.take_events()
    chain = plain_chain((), range(64))
    assert removed == BlockRemoved((chain[3], chain[2]), Tier.DEVICE, ())


def test_each_tier_reports_by_itself():
    cache = RadixCache(events=BLOCK, host_tier=True)
    put(cache, range(32))
    (backup,) = cache.backups()
    cache.backed_up(backup, [0] * 32)
    cache.evict(32)
    cache.loaded(cache.load(cache.match(Key(range(32)))), [0] * 32)
    kinds = [(type(event).__name__, event.tier.name) for event in cache.take_events()]
    assert kinds == [
        ("BlockStored", "DEVICE"),
        ("BlockStored", "HOST"),
        ("BlockRemoved", "DEVICE"),
        ("BlockStored", "DEVICE"),
    ]


def test_runs_of_different_tiers_are_not_one_event():
    cache = RadixCache(events=BLOCK, host_tier=True)
    put(cache, range(16), tier=Tier.HOST)
    put(cache, range(16))
    put(cache, range(32), tier=Tier.HOST)
    put(cache, range(16, 48), ("x",))
    cache.evict(32)
    cache.evict(16, tier=Tier.HOST)
    events = cache.take_events()
    assert [event.tier.name for event in events] == [
        *("HOST", "DEVICE", "HOST", "DEVICE"),
        *("DEVICE", "DEVICE", "HOST"),
    ]
    assert [event.namespace for event in events[-3:]] == [(), ("x",), ()]


def test_a_match_reports_the_whole_blocks_that_it_found():
    cache = RadixCache(events=BLOCK)
    put(cache, range(50), ("x",))
    cache.take_events()
    cache.match(Key([*range(40), 0], ("x",)))
    cache.match(Key(range(15), ("x",)))
    chain = plain_chain(("x",), range(32))
    assert cache.take_events() == [PrefixReused(chain[1], 2, 40, ("x",))]


def test_reset_is_one_event():
    cache = RadixCache(events=BLOCK)
    put(cache, range(64))
    put(cache, [1] * 64, ("x",))
    cache.take_events()
    cache.reset()
    assert cache.take_events() == [AllCleared()]


def test_drop_removes_the_blocks_of_its_namespace():
    cache = RadixCache(events=BLOCK)
    put(cache, range(64))
    put(cache, range(64), ("x",))
    cache.take_events()
    cache.drop(("x",))
    (removed,) = cache.take_events()
    assert removed.namespace == ("x",)
    assert set(removed.block_hashes) == set(plain_chain(("x",), range(64)))


def test_a_full_buffer_says_so_and_names_what_is_stored_now():
    cache = RadixCache(events=EventOptions(BLOCK, capacity=5))
    put(cache, range(48))
    put(cache, [1] * 48)
    cache.evict(80)
    lost, stored = cache.take_events()
    assert isinstance(lost, EventsLost)
    assert stored.token_ids == (1,) * 16
    put(cache, [2] * 16)
    assert [event.token_ids for event in cache.take_events()] == [(2,) * 16]


@pytest.mark.parametrize("later", [0, 1, 5])
def test_a_full_buffer_counts_what_it_had_and_all_that_came_until_it_was_taken(later):
    cache = RadixCache(events=EventOptions(BLOCK, capacity=5))
    put(cache, [1] * 16)
    put(cache, [2] * 16)
    assert len(cache.take_events()) == 2
    for first in range(3, 6 + later):  # Two of these fit, a third is the one too many.
        put(cache, [first] * 16)
    assert cache.take_events()[0] == EventsLost(3 + later)
    put(cache, [99] * 16)
    assert len(cache.take_events()) == 1, "what was counted is counted once"


def test_a_late_listener_is_told_all_and_an_early_one_is_not_confused():
    cache = RadixCache(events=BLOCK)
    put(cache, range(64))
    early, late = Listener(), Listener()
    early.hear(cache.take_events())
    cache.evict(16)
    put(cache, [*range(20), *[9] * 20])
    events = cache.take_events(resync=True)
    early.hear(events)
    late.hear(events[events.index(AllCleared()) :])
    check(early, cache)
    check(late, cache)


@pytest.mark.parametrize(
    ("block", "page"), [(15, 1), (0, 1), (16, 24), (24, 16), (20, 8), (16, 32)]
)
def test_block_sizes_that_do_not_fit_are_refused(block, page):
    with pytest.raises(ValueError, match="block_size"):
        RadixCache(page_size=page, events=block)


def test_a_buffer_without_room_is_refused():
    with pytest.raises(ValueError, match="capacity 0"):
        EventOptions(16, capacity=0)


NAMESPACES = st.lists(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=3).map(tuple),
        max_leaves=4,
    ),
    max_size=3,
).map(tuple)


@given(NAMESPACES, NAMESPACES)
def test_namespaces_have_the_same_seed_only_if_they_are_equal(one, other):
    assert (namespace_seed(one) == namespace_seed(other)) == (one == other)


@pytest.mark.parametrize(
    "pair", [(("a", "bc"), ("ab", "c")), ((None,), ("",)), ((1,), ("1",)), (("a",), (b"a",))]
)
def test_namespaces_that_look_alike_share_no_hash(pair):
    one, other = (block_hashes(Key(range(16), namespace), 16) for namespace in pair)
    assert one != other


def test_different_tokens_never_share_a_hash():  # RC-11
    base = list(range(1000, 1064))
    seen = {tuple(base): block_hashes(Key(base), 64)[-1]}
    for at, _ in pairwise(range(64)):
        other = [*base]
        other[at] += 31
        other[at + 1] -= 1
        seen[tuple(other)] = block_hashes(Key(other), 64)[-1]
    assert len(set(seen.values())) == len(seen) == 64


def test_hashes_are_the_documented_chain():
    tokens = [*range(-20, 28), 2**31 - 1]
    for namespace in ((), ("a", None, -255, b"x", ("y", ()))):
        assert block_hashes(Key(tokens, namespace), 16) == plain_chain(namespace, tokens)


def test_hashes_are_equal_in_every_process():  # RC-11
    program = (
        "from phloem.radix_cache import Key, RadixCache;"
        "c = RadixCache(events=16);"
        "c.insert(Key(range(48), ('a', None)), [0] * 48);"
        "print([h.hex() for h in c.take_events()[0].block_hashes])"
    )
    expected = str([name.hex() for name in plain_chain(("a", None), range(48))])
    for seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == expected


def test_hashes_are_equal_on_big_endian_hosts():
    assert _little_endian(struct.pack(">3i", 1, -2, 70000), "big") == struct.pack(
        "<3i", 1, -2, 70000
    )


@pytest.fixture
def stream():
    """One of each event, with the cache's own hashes."""
    cache = RadixCache(events=BLOCK, host_tier=True)
    put(cache, range(48), ("salt", "adapter"))
    cache.backed_up(cache.backups()[0], [0] * 48)
    cache.match(Key(range(48), ("salt", "adapter")))
    cache.evict(16)
    events = cache.take_events()
    cache.reset()
    return [*events, *cache.take_events(), EventsLost(3)]


def named(namespace):
    return events_wire.Names(lora_id=3, lora_name=namespace[1], cache_salt=namespace[0])


def vllm_batch_type(msgspec):
    """Declared as in vLLM 0.32, as far as a decoder cares."""
    name = bytes | int

    class Event(msgspec.Struct, omit_defaults=True, tag=True):
        pass

    stored = msgspec.defstruct(
        "BlockStored",
        [
            ("block_hashes", list[name]),
            ("parent_block_hash", name | None),
            ("token_ids", list[int]),
            ("block_size", int),
            ("lora_id", int | None),
            ("medium", str | None),
            ("lora_name", str | None),
            ("extra_keys", list[tuple | None] | None, None),
            ("group_idx", int | None, None),
            ("kv_cache_spec_kind", str | None, None),
            ("session_id", str | None, None),
        ],
        bases=(Event,),
        forbid_unknown_fields=True,
    )
    removed = msgspec.defstruct(
        "BlockRemoved",
        [
            ("block_hashes", list[name]),
            ("medium", str | None),
            ("group_idx", int | None, None),
            ("locality", str | None, None),
        ],
        bases=(Event,),
        forbid_unknown_fields=True,
    )
    return _batch_type(msgspec, Event, stored, removed, "data_parallel_rank")


def sglang_batch_type(msgspec):
    """Declared as in SGLang 0.5.23, as far as a decoder cares."""

    class Event(msgspec.Struct, omit_defaults=True, tag=True):
        pass

    stored = msgspec.defstruct(
        "BlockStored",
        [
            ("block_hashes", list[int]),
            ("parent_block_hash", int | None),
            ("token_ids", list[int]),
            ("block_size", int),
            ("lora_id", int | None),
            ("medium", str | None, None),
            ("cache_salt", str | None, None),
            ("session_id", str | None, None),
            ("lora_name", str | None, None),
        ],
        bases=(Event,),
        forbid_unknown_fields=True,
    )
    removed = msgspec.defstruct(
        "BlockRemoved",
        [("block_hashes", list[int]), ("medium", str | None, None)],
        bases=(Event,),
        forbid_unknown_fields=True,
    )
    return _batch_type(msgspec, Event, stored, removed, "attn_dp_rank")


def _batch_type(msgspec, event, stored, removed, rank):
    cleared = msgspec.defstruct("AllBlocksCleared", [], bases=(event,))
    return msgspec.defstruct(
        "KVEventBatch",
        [("ts", float), ("events", list[stored | removed | cleared]), (rank, int | None, None)],
        array_like=True,
        forbid_unknown_fields=True,
    )


def test_consumers_of_vllm_read_our_messages(stream):
    msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed: nothing to read by")
    chain = plain_chain(("salt", "adapter"), range(48))
    for width in ("int", "bytes"):
        sent = events_wire.vllm_batch(stream, 12.5, 1, names=named, hashes=width)
        coded = msgspec.msgpack.encode(sent)
        read = msgspec.msgpack.decode(coded, type=vllm_batch_type(msgspec))
        stored, copied, removed, cleared, lost = read.events
        names = [int.from_bytes(h, "big") & (2**64 - 1) if width == "int" else h for h in chain]
        assert (read.ts, read.data_parallel_rank) == (12.5, 1)
        assert (stored.block_hashes, stored.parent_block_hash) == (names, None)
        assert (stored.token_ids, stored.block_size) == (list(range(48)), 16)
        assert (stored.lora_id, stored.lora_name) == (3, "adapter")
        assert stored.extra_keys == [("adapter", "salt"), ("adapter",), ("adapter",)]
        assert (stored.medium, copied.medium, removed.medium) == ("GPU", "CPU", "GPU")
        assert removed.block_hashes == names[2:]
        assert type(cleared).__name__ == type(lost).__name__ == "AllBlocksCleared"
        # What its own encoder writes is what was sent: nothing left out, nothing in excess.
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(read)) == msgspec.msgpack.decode(coded)


def test_consumers_of_sglang_read_our_messages(stream):
    msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed: nothing to read by")
    sent = events_wire.sglang_batch(stream, 12.5, names=named)
    coded = msgspec.json.encode(sent)
    read = msgspec.json.decode(coded, type=sglang_batch_type(msgspec))
    stored, copied, removed, _, _ = read.events
    names = []
    for each in plain_chain(("salt", "adapter"), range(48)):
        unsigned = int(each.hex()[:16], 16)
        names.append(unsigned - 2**64 if unsigned >= 2**63 else unsigned)
    assert (stored.block_hashes, stored.parent_block_hash) == (names, None)
    assert (stored.cache_salt, stored.lora_name) == ("salt", "adapter")
    assert (stored.medium, copied.medium, removed.medium) == ("GPU", "CPU_PINNED", "GPU")
    assert removed.block_hashes == names[2:]
    assert msgspec.json.decode(msgspec.json.encode(read)) == msgspec.json.decode(coded)


def test_messages_without_names_leave_optional_fields_out(stream):
    _, vllm, vllm_rank = events_wire.vllm_batch(stream, 0.0)
    _, sglang, sglang_rank = events_wire.sglang_batch(stream, 0.0)
    assert set(vllm[0]) == {
        *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size"),
        *("lora_id", "medium", "lora_name", "group_idx"),
    }
    assert set(sglang[0]) == {
        *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size"),
        *("lora_id", "medium"),
    }
    assert vllm_rank is sglang_rank is None
    assert json.loads(json.dumps(vllm)) == vllm
