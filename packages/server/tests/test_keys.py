"""API keys: their file, the command that keeps it, and how one is recognized."""

from __future__ import annotations

import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from phloem.server import keys
from phloem.server.keys import (
    Key,
    KeyLimits,
    KeyRing,
    add_key,
    digest_of,
    make_ring,
    read_keys,
    remove_key,
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys"


def test_a_made_key_is_found_again_and_no_other(file):
    secret = add_key(file, "alice", KeyLimits(requests=3))
    ring = make_ring((), str(file), None)
    found = ring.find(secret.encode())
    assert (found.name, found.limits, found.admin) == ("alice", KeyLimits(requests=3), False)
    for wrong in (b"", secret.encode()[:-1], secret.encode() + b" ", b"\xff", found.digest):
        assert ring.find(wrong) is None


def test_the_file_holds_no_key_and_is_for_its_owner_only(file):
    secret = add_key(file, "alice", KeyLimits())
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in repr(make_ring((), str(file), None).find(secret.encode()))


def test_an_id_is_the_same_after_a_restart_and_differs_between_keys(file):
    a, b = (add_key(file, name, KeyLimits()).encode() for name in "ab")
    first, again = (make_ring((), str(file), None) for _ in range(2))
    assert first.find(a).id == again.find(a).id != again.find(b).id
    assert first.find(a).digest.hex()[:16] != first.find(a).id


def test_plain_keys_and_the_admin_key_are_found_beside_those_of_a_file(file):
    secret = add_key(file, "alice", KeyLimits())
    ring = make_ring(("one", "two"), str(file), "boss")
    found = [ring.find(key) for key in (b"one", b"two", secret.encode(), b"boss")]
    assert [key.name for key in found] == ["key-1", "key-2", "alice", "admin"]
    assert [key.admin for key in found] == [False, False, False, True]
    assert ring.has_admin
    assert ring.has_callers
    only = make_ring((), None, "boss")
    assert only.has_admin
    assert not only.has_callers
    assert not KeyRing().has_admin


def test_a_key_that_is_there_twice_is_refused():
    with pytest.raises(ValueError, match="key-1 and admin are the same"):
        make_ring(("one",), None, "one")


@pytest.mark.parametrize("key", ["", "with space", "tab\t", "ümlaut", "line\n"])
def test_a_key_that_no_header_can_carry_is_refused(key):
    with pytest.raises(ValueError, match="visible ASCII") as caught:
        make_ring((key,), None, None)
    assert not key or key not in str(caught.value)


HASH = digest_of(b"x").hex()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("alice plain-secret", "is no SHA-256"),
        ("alice", "is no SHA-256"),
        (f"admin {HASH}", "is not admin"),
        (f"al/ice {HASH}", "letters, digits"),
        (f"alice {HASH} requests=0", "requests 0 lets nobody in"),
        (f"alice {HASH} requests=x", "a limit is not"),
        (f"alice {HASH} tokens=1 tokens=2", "a limit is not"),
        (f"alice {HASH} speed=2", "requests, tokens, concurrent"),
        (f"bob {HASH}", "the name bob is there twice"),
    ],
)
def test_a_line_that_is_wrong_is_named_by_its_number_but_not_shown(file, line, says):
    file.write_text(f"# keys\nbob {digest_of(b'b').hex()} tokens=5\n\n{line}\n")
    with pytest.raises(ValueError, match=f"line 4 of .*{re.escape(says)}") as caught:
        read_keys(file)
    assert "plain-secret" not in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_a_sentence(file):
    with pytest.raises(ValueError, match="cannot be read"):
        read_keys(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="no UTF-8"):
        read_keys(file)


@pytest.mark.parametrize("admin", [None, "boss"])
def test_a_file_without_keys_is_refused_and_opens_nothing(file, admin):
    add_key(file, "alice", KeyLimits())
    remove_key(file, "alice")
    with pytest.raises(ValueError, match="has no keys"):
        make_ring((), str(file), admin)


def test_limits_of_a_key_come_before_those_of_the_server():
    own, server = KeyLimits(requests=3), KeyLimits(requests=9, concurrent=2)
    assert own.over(server) == KeyLimits(requests=3, concurrent=2)
    assert KeyLimits().over(server) == server


def test_a_line_has_what_it_was_made_of(file):
    key = Key("alice", digest_of(b"x"), KeyLimits(requests=1, tokens=2, concurrent=3))
    file.write_text(key.line())
    assert read_keys(file) == [key]


def test_the_command_makes_lists_and_removes_keys(phloem, file):
    file.write_text("# ours")
    made = phloem("keys", "add", "alice", "--file", str(file), "--requests", "3")
    assert (made.code, made.err.count("alice")) == (0, 1)
    phloem("keys", "add", "bob", "--file", str(file))
    found = make_ring((), str(file), None).find(made.out.strip().encode())
    assert found.name == "alice"
    listed = phloem("keys", "list", "--file", str(file)).out.split("\n")
    assert listed[0] == f"alice {found.id} requests=3"
    assert phloem("keys", "remove", "alice", "--file", str(file)).code == 0
    assert [key.name for key in read_keys(file)] == ["bob"]
    assert file.read_text().startswith("# ours\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "bob"), "the name bob is taken"),
        (("add", "admin"), "is not"),
        (("add", "carl", "--tokens", "0"), "tokens 0 lets nobody in"),
        (("remove", "carl"), "there is no key carl"),
    ],
)
def test_the_command_refuses_with_2_and_a_sentence(phloem, file, arguments, says):
    add_key(file, "bob", KeyLimits())
    before = file.read_text()
    done = phloem("keys", *arguments, "--file", str(file))
    assert (done.code, says in done.err) == (2, True)
    assert file.read_text() == before


def test_lines_end_where_a_line_ends_and_at_no_other_character(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the\u2028old \x0c office\n", encoding="utf-8")
    for name in ("alice", "bob"):
        add_key(file, name, KeyLimits())
    remove_key(file, "alice")
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# of the\u2028old \x0c office\nbob ")
    assert text.endswith("\n")
    assert [key.name for key in read_keys(file)] == ["bob"]


def test_keys_that_are_added_at_once_are_all_there(tmp_path, monkeypatch):
    file, names = tmp_path / "keys", [f"key-{i}" for i in range(4)]
    together = threading.Barrier(len(names))

    def read_late(path):
        # Without a lock all would have read the file before any writes it.
        with suppress(threading.BrokenBarrierError):
            together.wait(0.05)
        return read_keys(path)

    add_key(file, "first", KeyLimits())
    monkeypatch.setattr(keys, "read_keys", read_late)
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: add_key(file, name, KeyLimits()), names))
    assert sorted(key.name for key in read_keys(file)) == ["first", *names]
