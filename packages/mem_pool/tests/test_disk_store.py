import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phloem.mem_pool import DiskStore
from phloem.mem_pool.block_file import HEADER_BYTES


def name_of(i):
    return bytes([i]) * 32


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(tmp_path, clock):
    """Opens stores on one folder; all are closed at the end."""
    stores = []

    def make(capacity=1 << 20, **options):
        stores.append(DiskStore(tmp_path / "cache", capacity, clock=clock, **options))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def put(store, *blocks):
    for i, data in blocks:
        store.put(name_of(i), data)
        store.flush()


def files(store):
    return sorted(path for path in store.folder.rglob("*") if path.is_file())


def test_what_was_put_is_there_also_after_a_restart(open_store):
    store = open_store()
    assert store.find([name_of(1)]) == 0
    put(store, (1, b"one"), (2, b"two"))
    store.close()
    again = open_store()
    assert again.find([name_of(1), name_of(2), name_of(3)]) == 2
    assert again.get(name_of(2)) == b"two"
    assert (again.stats.hits, again.stats.misses) == (1, 0)


def test_find_ends_at_the_first_gap(open_store):
    store = open_store()
    put(store, (1, b"x"), (3, b"x"))
    assert store.find([name_of(1), name_of(2), name_of(3)]) == 1
    assert store.find([]) == 0


def test_close_writes_what_waits(open_store):
    store = open_store()
    for i in range(50):
        store.put(name_of(i), bytes(100))
    store.close()
    assert open_store().find([name_of(i) for i in range(50)]) == 50


def test_a_block_that_is_there_is_not_written_again(open_store):
    store = open_store()
    put(store, (1, b"one"), (1, b"one"))
    assert store.stats.written == 1


def test_a_block_is_replaced_where_that_is_asked_for(open_store):
    store = open_store()
    put(store, (1, b"one"))
    store.put(name_of(1), b"another", replace=True)
    store.flush()
    assert store.get(name_of(1)) == b"another"
    assert len(files(store)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file[:-1],
        lambda file: file[:10],
        lambda file: b"",
        lambda file: file[:-1] + bytes([file[-1] ^ 1]),
        lambda file: b"a file of somebody else that has come here by accident " * 3,
    ],
    ids=["cut", "no header", "empty", "changed", "foreign"],
)
def test_a_file_that_is_not_right_is_ignored_and_counted_and_left_alone(open_store, damage):
    store = open_store()
    put(store, (1, b"some data"))
    (path,) = files(store)
    path.write_bytes(damage(path.read_bytes()))
    damaged = path.read_bytes()
    assert store.find([name_of(1)]) == 1
    assert store.get(name_of(1)) is None
    assert store.stats.corrupt == 1
    assert store.find([name_of(1)]) == 0
    assert path.read_bytes() == damaged
    put(store, (1, b"some data"))
    assert store.get(name_of(1)) == b"some data"


def test_a_block_under_the_name_of_another_is_not_taken_for_it(open_store):
    store = open_store()
    put(store, (1, b"one"), (2, b"two"))
    one, two = files(store)
    two.write_bytes(one.read_bytes())
    assert store.get(name_of(2)) is None


def test_what_was_used_last_is_kept(open_store, clock):
    size = HEADER_BYTES + 1000
    store = open_store(capacity=4 * size)
    for i in range(4):
        clock.now += 1
        put(store, (i, bytes(1000)))
    clock.now += 1
    assert store.get(name_of(0)) is not None
    clock.now += 1
    put(store, (4, bytes(1000)))
    store.close()
    kept = [i for i in range(5) if store.find([name_of(i)])]
    assert kept == [0, 3, 4]
    assert sum(path.stat().st_size for path in files(store)) <= 4 * size
    assert store.stats.evicted == 2


def test_a_block_larger_than_all_is_not_written(open_store):
    store = open_store(capacity=100)
    put(store, (1, bytes(1000)))
    assert files(store) == []


def test_two_stores_on_one_folder_see_each_others_blocks_and_share_the_cap(open_store, clock):
    size = HEADER_BYTES + 1000
    one, two = open_store(capacity=16 * size), open_store(capacity=16 * size)
    put(one, (1, bytes(1000)))
    assert two.get(name_of(1)) == bytes(1000)
    for i in range(2, 40):
        clock.now += 1
        put((one, two)[i % 2], (i, bytes(1000)))
    assert len(files(one)) <= 17
    assert one.find([name_of(39)]) == two.find([name_of(39)]) == 1


def test_a_store_that_wrote_little_itself_sees_soon_what_others_wrote(open_store, clock):
    """A process that looked at an empty folder once may not fill it as if it were alone."""
    size = HEADER_BYTES + 1000
    one, two = open_store(capacity=32 * size), open_store(capacity=32 * size)
    put(two, (0, bytes(1000)))  # both have looked through the folder by then
    for i in range(1, 32):
        clock.now += 1
        put(one, (i, bytes(1000)))
    for i in range(32, 36):
        clock.now += 1
        put(two, (i, bytes(1000)))
    two.close()
    assert len(files(two)) <= 32 + 2


def test_a_block_that_another_process_removed_is_a_miss(open_store):
    store = open_store()
    put(store, (1, b"one"))
    files(store)[0].unlink()
    assert store.get(name_of(1)) is None
    assert store.stats.misses == 1


def test_two_processes_write_and_read_one_folder_at_the_same_time(open_store, tmp_path):
    store = open_store()
    code = f"""
import sys; sys.path[:] = {sys.path!r}
from phloem.mem_pool import DiskStore
store = DiskStore({str(tmp_path / "cache")!r}, 1 << 20)
for i in range(60):
    store.put(bytes([i]) * 32, bytes([i]) * 2000)
    data = store.get(bytes([i]) * 32)
    assert data is None or data == bytes([i]) * 2000
store.close()
"""
    other = subprocess.Popen([sys.executable, "-c", code])
    for i in range(60):
        store.put(name_of(i), bytes([i]) * 2000)
        data = store.get(name_of(i))
        assert data is None or data == bytes([i]) * 2000
    assert other.wait(timeout=30) == 0
    store.flush()
    assert [bytes(store.get(name_of(i))) for i in range(60)] == [
        bytes([i]) * 2000 for i in range(60)
    ]
    assert store.stats.corrupt == 0


def test_a_full_disk_costs_the_block_and_nothing_else(open_store, clock, monkeypatch):
    store = open_store()
    put(store, (1, b"one"))
    real = Path.open

    def full(path, *args, **kwargs):
        if path.suffix == ".tmp":
            path.touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        put(store, (2, b"two"))
    put(store, (3, b"three"))  # the disk is left in peace for a while
    assert (store.stats.refused, store.stats.dropped) == (1, 1)
    assert store.get(name_of(1)) == b"one"
    assert len(files(store)) == 1
    clock.now += 60
    put(store, (2, b"two"))
    assert store.get(name_of(2)) == b"two"


def test_what_waits_is_bounded(open_store):
    store = open_store(queue_bytes=1000)
    store.put(name_of(1), bytes(1001))
    assert store.stats.dropped == 1
    store.flush()
    assert files(store) == []


def test_what_was_not_used_for_long_is_gone(open_store, clock):
    store = open_store(idle_ttl=100.0)
    put(store, (1, b"one"), (2, b"two"))
    clock.now += 60
    assert store.get(name_of(1)) == b"one"
    clock.now += 60
    assert store.find([name_of(1)]) == 1
    assert store.find([name_of(2)]) == 0
    store.close()
    open_store(idle_ttl=100.0).close()  # a start looks through the folder
    assert len(files(store)) == 1


def test_temporary_files_of_a_writer_that_died_are_removed_and_those_of_a_living_one_are_not(
    open_store, clock
):
    store = open_store()
    put(store, (1, b"one"))
    folder = files(store)[0].parent
    for name, age in (("dead.tmp", 4000), ("living.tmp", 10)):
        (folder / name).touch()
        os.utime(folder / name, (clock.now - age,) * 2)
    (folder / "notes.txt").write_text("somebody's own")
    os.utime(folder / "notes.txt", (0, 0))
    open_store().close()
    assert {path.name for path in files(store)} - {files(store)[0].name} >= {"notes.txt"}
    assert not (folder / "dead.tmp").exists()
    assert (folder / "living.tmp").exists()


def test_a_folder_that_cannot_be_used_is_refused_with_the_cure(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="give a folder"):
        DiskStore(tmp_path / "file", 1000)
