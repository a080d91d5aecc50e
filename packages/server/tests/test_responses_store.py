from __future__ import annotations

import json

import pytest

from phloem.server.http.errors import ApiError
from phloem.server.http.responses.store import ResponseStore, Stored, history_of


def put(store, id, owner="me", previous=None, text=""):
    response = json.dumps({"id": id, "output": [{"said": id}], "text": text}).encode()
    asked = json.dumps([{"asked": id}]).encode()
    store.put(owner, id, Stored(response, asked, previous))


def holds(store, id, owner="me"):
    try:
        return json.loads(store.get(owner, id).response)["id"] == id
    except ApiError:
        return False


def test_a_response_is_its_callers_alone():
    store = ResponseStore()
    put(store, "a", "me")
    assert holds(store, "a", "me")
    assert not holds(store, "a", "another")
    with pytest.raises(ApiError) as caught:
        store.get("another", "a")
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")
    with pytest.raises(ApiError):
        store.delete("another", "a")
    assert holds(store, "a", "me")


def test_a_deleted_response_is_gone_and_takes_nothing():
    store = ResponseStore()
    put(store, "a")
    store.delete("me", "a")
    assert not holds(store, "a")
    assert (len(store), store.bytes) == (0, 0)


def test_the_one_that_nobody_used_for_longest_goes_first():
    store = ResponseStore(most=2)
    put(store, "a")
    put(store, "b")
    assert holds(store, "a")
    put(store, "c")
    assert [holds(store, id) for id in "abc"] == [True, False, True]


def test_bytes_are_bounded_and_what_is_too_large_by_itself_is_not_kept():
    store = ResponseStore(most_bytes=10_000)
    for id in "abcd":
        put(store, id, text="x" * 3000)
    assert [holds(store, id) for id in "abcd"] == [False, False, True, True]
    assert store.bytes <= 10_000
    put(store, "huge", text="x" * 10_000)
    assert not holds(store, "huge")
    assert holds(store, "d")


def test_a_history_has_all_items_in_their_order():
    store = ResponseStore()
    put(store, "a")
    put(store, "b", previous="a")
    put(store, "c", previous="b")
    put(store, "other", previous="a")
    assert history_of(store.chain("me", None)) == []
    assert history_of(store.chain("me", "c")) == [
        {key: id} for id in "abc" for key in ("asked", "said")
    ]


def test_a_history_that_has_lost_a_part_is_an_error_that_names_the_field():
    store = ResponseStore()
    put(store, "a")
    put(store, "b", previous="a")
    store.delete("me", "a")
    with pytest.raises(ApiError, match="'a'") as caught:
        store.chain("me", "b")
    assert caught.value.param == "previous_response_id"


def test_going_on_from_a_response_uses_all_before_it():
    store = ResponseStore(most=3)
    put(store, "a")
    put(store, "b", previous="a")
    put(store, "x")
    store.chain("me", "b")
    put(store, "y")
    assert [holds(store, id) for id in "abxy"] == [True, True, False, True]
