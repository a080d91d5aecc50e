"""What goes down to the host and comes back, and what happens when that fails."""

import pytest
from tier_support import LateTransfer, MemoryStore

from phloem.mem_pool import HostTier, PageAllocator, StoredBlocks
from phloem.radix_cache import Key, RadixCache

BLOCK = 64


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Rig:
    """A tree with a host tier, without manager: device slots are token ids plus an offset."""

    def __init__(
        self,
        device=1024,
        host=1024,
        page=1,
        store=None,
        fingerprint="m",
        host_values="numpy",
        **options,
    ):
        self.clock = Clock()
        self.tree = RadixCache(page, values="numpy", host_values=host_values, host_tier=True)
        self.device = PageAllocator(device, page)
        self.transfer = LateTransfer(self.device.num_slots, host + page)
        stored = None if store is None else StoredBlocks(store, self.transfer, fingerprint, page)
        self.tier = HostTier(
            self.tree,
            PageAllocator(host, page),
            self.transfer,
            stored,
            clock=self.clock,
            **options,
        )

    def put(self, tokens, namespace=()):
        """Compute and publish; a slot's content is its token."""
        slots = self.device.alloc_extend(-1, 0, len(tokens))
        self.transfer.device[slots] = tokens
        result = self.tree.insert(Key(tokens, namespace), slots)
        for declined in result.declined:
            self.device.free(slots[declined.start : declined.stop])

    def evict(self, n=10**6):
        for slots in self.tree.evict(n):
            self.transfer.device[slots] = -1
            self.device.free(slots)

    def pump(self):
        """Everything that is due is copied and taken in."""
        self.tier.pump()
        self.transfer.run()
        self.tier.pump()
        self.transfer.run()
        self.check()

    def match(self, tokens, namespace=()):
        """The content of the slots that a match brings to the device."""
        found = self.tier.match(
            Key(tokens, namespace),
            lambda n: self.device.alloc_extend(-1, 0, n),
            self.device.free,
        )
        self.transfer.run()
        content = self.transfer.device[found.values()].tolist()
        assert content == list(tokens[: len(content)])
        self.check()
        return len(content)

    def check(self):
        self.tree.check_integrity()
        sizes = self.tree.sizes
        assert self.device.available + sizes.total == self.device.capacity
        assert self.tier.check().problems == ()
        assert self.tier.health.mistakes == 0
        assert self.tier.stored is None or self.tier.stored.health.mistakes == 0


def test_what_the_device_let_go_comes_back_from_the_host():
    rig = Rig()
    rig.put(range(100))
    rig.pump()
    rig.evict()
    assert rig.tree.sizes.total == 0
    assert rig.tier.peek(Key(range(100))) == 100
    assert rig.match(range(100)) == 100
    assert (rig.tier.stats.backed_up, rig.tier.stats.loaded) == (100, 100)


def test_what_the_tier_did_is_counted_by_name():
    rig = Rig()
    rig.put(range(100))
    rig.pump()
    rig.evict()
    rig.match(range(100))
    counts = rig.tier.counts()
    assert counts["backed_up_tokens"] == counts["loaded_tokens"] == 100
    assert (counts["host_used_tokens"], counts["host_failures"]) == (100, 0)
    assert counts["host_capacity_tokens"] == rig.tier.slots.capacity
    assert not any(name.startswith("disk_") for name in counts)


def test_the_rest_of_a_path_comes_behind_what_the_device_has():
    rig = Rig(page=4)
    rig.put(range(64))
    rig.pump()
    rig.evict(32)
    assert rig.match([*range(48), 7, 7, 7, 7]) == 48


def test_a_copy_is_begun_once_and_taken_in_when_it_is_made():
    rig = Rig()
    rig.put(range(10))
    rig.tier.pump()
    rig.tier.pump()
    assert len(rig.transfer.waiting) == 1
    assert rig.tier.busy
    assert rig.tree.sizes.host.total == 0
    rig.check()
    rig.tier.pump(wait=1.0)
    assert not rig.tier.busy
    assert rig.tree.sizes.host.total == 10


def test_no_more_is_on_its_way_than_the_budget():
    rig = Rig(budget=20)
    for i in range(10):
        rig.put([i, *range(100, 109)])
    rig.tier.pump()
    assert rig.tier.check().copying == 20
    while rig.tier.busy:
        rig.tier.pump(wait=1.0)
    assert rig.tree.sizes.host.total == 100


def test_the_host_lets_go_of_what_was_used_last_long_ago():
    rig = Rig(host=20)
    for i in range(4):
        rig.put([i, *range(100, 109)])
        rig.pump()
    rig.evict()
    assert [rig.tier.peek(Key([i, *range(100, 109)])) for i in range(4)] == [0, 0, 10, 10]


def test_what_is_larger_than_the_host_stays_away_from_it():
    rig = Rig(host=20)
    rig.put(range(30))
    rig.pump()
    assert rig.tree.sizes.host.total == 0
    assert not rig.tier.busy


def test_settle_unpins_all_and_a_late_copy_does_no_harm_to_who_gets_its_slots():
    rig = Rig(host=20)
    rig.put(range(20))
    rig.tier.pump()
    assert rig.tree.sizes.protected == 20
    rig.tier.settle()
    assert rig.tree.sizes.protected == 0
    assert rig.tier.stats.given_up == 20
    rig.evict()
    rig.put(range(50, 70))
    rig.pump()
    rig.evict()
    assert rig.match(range(20)) == 0
    assert rig.match(range(50, 70)) == 20


def test_what_was_given_up_takes_nothing_of_the_budget():
    rig = Rig(budget=20)
    for i in range(5):
        rig.put([i, *range(100, 119)])
        rig.tier.pump()
        assert rig.tier.check().copying == 20
        rig.tier.settle()
        assert rig.tier.check().copying == 0
    assert rig.tier.stats.given_up == 100
    rig.put(range(20))
    rig.pump()
    assert rig.tier.stats.backed_up == 20


def test_settle_keeps_what_is_copied_already():
    rig = Rig()
    rig.put(range(20))
    rig.tier.pump()
    rig.transfer.run()
    rig.tier.settle()
    assert rig.tree.sizes.host.total == 20


def test_without_room_on_the_device_what_the_host_has_is_not_brought():
    rig = Rig(device=20)
    rig.put(range(20))
    rig.pump()
    rig.evict()
    rig.put(range(50, 60))
    assert rig.match(range(20)) == 0
    assert rig.tree.sizes.host.protected == 0


@pytest.mark.parametrize("kind", ["backup", "load"])
def test_what_refuses_is_a_miss_and_is_not_asked_any_more_after_three_times(kind):
    rig = Rig()
    rig.put(range(20))
    if kind == "load":
        rig.pump()
        rig.evict()
    rig.transfer.refuse = {kind}
    for i in range(3):
        assert not rig.tier.health.off
        if kind == "backup":
            rig.put(range(100 * i, 100 * i + 20))
            rig.tier.pump()
        else:
            assert rig.match(range(20)) == 0
        rig.check()
    assert rig.tier.health.off
    rig.transfer.refuse = set()
    assert rig.match(range(20)) == (20 if kind == "backup" else 0)
    rig.pump()
    assert not rig.tier.busy


def test_one_failure_does_not_end_the_tier():
    rig = Rig()
    for i in range(8):
        rig.put([i, *range(100, 109)])
        rig.transfer.fail = i % 2
        rig.pump()
    assert not rig.tier.health.off
    assert rig.tier.health.failures == 4
    assert rig.tree.sizes.host.total == 40


def test_what_was_to_follow_a_copy_that_failed_is_not_taken():
    rig = Rig()
    rig.put(range(10))
    rig.tier.pump()
    rig.put(range(20))
    rig.tier.pump()
    rig.transfer.fail = 1
    rig.transfer.run()
    rig.tier.pump()
    rig.check()
    rig.evict()
    assert rig.tier.peek(Key(range(20))) == 0


def test_copies_that_never_end_are_given_up_and_the_tier_with_them():
    rig = Rig()
    rig.put(range(20))
    rig.transfer.dead = True
    rig.tier.pump()
    rig.clock.now = 5.0
    rig.tier.pump()
    assert not rig.tier.health.off
    rig.clock.now = 11.0
    rig.tier.pump()
    assert rig.tier.health.off
    assert rig.tree.sizes.protected == 0
    assert rig.match(range(20)) == 20


class TestStore:
    @pytest.fixture
    def store(self):
        return MemoryStore()

    def computed(self, store, tokens=range(200), namespace=(), **options):
        """A life of the process that computes something, and is over."""
        rig = Rig(store=store, **options)
        rig.put(tokens, namespace)
        rig.pump()
        rig.tier.close()
        return rig

    def test_another_process_has_what_one_computed(self, store):
        self.computed(store)
        assert store.closed
        rig = Rig(store=store)
        assert rig.tier.peek(Key(range(200))) == 0
        assert rig.match(range(200)) == 200
        assert rig.tier.stats.restored == 200
        assert rig.match([*range(100), *range(50)]) == 100

    @pytest.mark.parametrize("host_values", [None, "sequence", "numpy"])
    def test_a_new_process_restores_whatever_an_empty_tier_of_the_tree_says(
        self, store, host_values
    ):
        self.computed(store, host_values=host_values)
        rig = Rig(store=store, host_values=host_values)
        assert rig.match(range(200)) == 200
        assert rig.tier.stats.restored == 200
        assert rig.tier.stored.health.failures == 0

    @pytest.mark.parametrize("page", [1, 4])
    def test_of_the_last_block_as_many_pages_come_as_are_shared(self, store, page):
        self.computed(store, range(3 * BLOCK + 20), page=page)
        for asked in (3 * BLOCK + 17, 3 * BLOCK + 20, 3 * BLOCK + 30):
            shared = min(asked, 3 * BLOCK + 20) // page * page
            assert Rig(store=store, page=page).match(range(asked)) == shared
        other = [*range(3 * BLOCK + 9), *range(50)]
        assert Rig(store=store, page=page).match(other) == (3 * BLOCK + 9) // page * page

    def test_of_ends_that_begin_alike_the_last_one_is_kept(self, store):
        self.computed(store, [*range(70), 1, 2, 3])
        self.computed(store, [*range(70), 4, 5, 6])
        assert Rig(store=store).match([*range(70), 1, 2, 3]) == 70
        assert Rig(store=store).match([*range(70), 4, 5, 6]) == 73

    def test_what_is_shorter_than_a_block_comes_back(self, store):
        self.computed(store, range(40))
        assert Rig(store=store).match(range(40)) == 40

    def test_an_end_that_is_damaged_is_a_miss(self, store):
        self.computed(store, range(70))
        for name in store.blocks:
            store.blocks[name] = store.blocks[name][:-1]
        assert Rig(store=store).match(range(70)) == 0

    @pytest.mark.parametrize("page", [1, 16, 128])
    def test_with_pages(self, store, page):
        self.computed(store, range(512), page=page)
        assert Rig(store=store, page=page).match(range(512)) == 512

    def test_blocks_are_stored_over_the_borders_of_what_was_computed_together(self, store):
        rig = Rig(store=store)
        for end in (40, 100, 130):
            rig.put(range(end))
            rig.pump()
        assert Rig(store=store).match(range(200)) == 130

    def test_other_models_and_namespaces_do_not_share(self, store):
        self.computed(store, namespace=("salt",))
        assert Rig(store=store).match(range(200)) == 0
        assert Rig(store=store).match(range(200), ("other",)) == 0
        assert Rig(store=store, fingerprint="n").match(range(200), ("salt",)) == 0
        assert Rig(store=store).match(range(200), ("salt",)) == 200

    def test_what_the_tree_has_is_not_read_again(self, store):
        self.computed(store)
        rig = Rig(store=store)
        rig.put(range(100))
        assert rig.match(range(200)) == 200
        store.refuse = {"get"}
        assert rig.match(range(200)) == 200
        assert rig.tier.stored.health.failures == 0

    def test_what_the_host_holds_in_part_is_gone_on_from_there(self, store):
        self.computed(store)
        rig = Rig(store=store)
        rig.put(range(100))
        rig.pump()
        rig.evict(50)
        assert rig.match(range(200)) == 200
        assert rig.tier.stats.restored == 100

    def test_a_block_that_is_lost_or_of_another_size_ends_it(self, store):
        self.computed(store, range(4 * BLOCK))
        names = list(store.blocks)
        store.lost = {names[2]}
        assert Rig(store=store).match(range(4 * BLOCK)) == 2 * BLOCK
        store.blocks[names[1]] += b"x"
        assert Rig(store=store).match(range(4 * BLOCK)) == BLOCK

    def test_no_more_is_read_than_the_host_has_room_for(self, store):
        self.computed(store, range(4 * BLOCK))
        assert Rig(store=store, host=3 * BLOCK - 1).match(range(4 * BLOCK)) == 2 * BLOCK
        assert Rig(store=store, host=BLOCK - 1).match(range(4 * BLOCK)) == 0

    @pytest.mark.parametrize(("host", "others"), [(3, 1), (4, 1), (4, 2), (5, 3)])
    def test_where_room_was_made_at_the_cost_of_the_prefix_itself_nothing_wrong_comes(
        self, store, host, others
    ):
        self.computed(store, range(4 * BLOCK))
        rig = Rig(store=store, host=host * BLOCK)
        rig.put(range(2 * BLOCK))
        rig.pump()
        rig.put(range(1000, 1000 + others * BLOCK))
        rig.pump()
        rig.evict()
        assert rig.match(range(4 * BLOCK)) in (0, BLOCK, 2 * BLOCK)
        assert rig.match(range(4 * BLOCK)) >= min(3, host) * BLOCK

    @pytest.mark.parametrize("method", ["find", "get"])
    def test_a_store_that_fails_is_a_miss_and_not_asked_any_more_after_three_times(
        self, store, method
    ):
        self.computed(store)
        rig = Rig(store=store)
        store.refuse = {method}
        for _ in range(3):
            assert rig.match(range(200)) == 0
        assert rig.tier.stored.health.off
        store.refuse = set()
        assert rig.match(range(200)) == 0
        assert not rig.tier.health.off

    def test_a_transfer_that_cannot_fill_or_read_the_host_is_a_miss(self, store):
        rig = Rig(store=store)
        rig.transfer.refuse = {"read"}
        rig.put(range(200))
        rig.pump()
        assert store.blocks == {}
        self.computed(store)
        rig = Rig(store=store)
        rig.transfer.refuse = {"write"}
        assert rig.match(range(200)) == 0

    def test_a_full_store_costs_only_what_it_did_not_take(self, store):
        store.full = True
        rig = self.computed(store)
        assert store.blocks == {}
        assert rig.tier.stored.health.failures == 0

    def test_a_block_goes_on_from_the_token_where_the_tree_ends(self, store):
        self.computed(store, range(3 * BLOCK))
        rig = Rig(store=store)
        for end in (10, BLOCK, BLOCK + 1, BLOCK + 50):
            rig.put(range(end))
            rig.pump()
            rig.evict(end // 2)
        assert rig.match(range(3 * BLOCK)) == 3 * BLOCK


def test_a_store_needs_a_fingerprint_and_the_pages_must_be_equal():
    with pytest.raises(ValueError, match="fingerprint"):
        Rig(store=MemoryStore(), fingerprint="")
    tree = RadixCache(4, host_tier=True)
    with pytest.raises(ValueError, match="same page_size"):
        HostTier(tree, PageAllocator(64, 8), LateTransfer(1, 1))
