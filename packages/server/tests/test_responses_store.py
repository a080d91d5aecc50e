from __future__ import annotations

import json

import pytest

from phloem.server.http.errors import ApiError
from phloem.server.http.responses.store import Owner, ResponseStore, Stored, history_of

ME, ANOTHER = Owner("key"), Owner("key", "tenant")


def put(store, id, owner=ME, previous=None, text=""):
    response = json.dumps({"id": id, "output": [{"said": id}], "text": text}).encode()
    asked = json.dumps([{"asked": id}]).encode()
    store.put(owner, id, Stored(response, asked, previous))


def holds(store, id, owner=ME):
    try:
        return json.loads(store.get(owner, id).response)["id"] == id
    except ApiError:
        return False


def test_a_response_is_its_callers_alone():
    store = ResponseStore()
    put(store, "a", ME)
    assert holds(store, "a", ME)
    assert not holds(store, "a", ANOTHER)
    with pytest.raises(ApiError) as caught:
        store.get(ANOTHER, "a")
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")
    with pytest.raises(ApiError):
        store.delete(ANOTHER, "a")
    assert holds(store, "a", ME)


def test_a_deleted_response_is_gone_and_takes_nothing():
    store = ResponseStore()
    put(store, "a")
    store.delete(ME, "a")
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
    assert history_of(store.chain(ME, None)) == []
    assert history_of(store.chain(ME, "c")) == [
        {key: id} for id in "abc" for key in ("asked", "said")
    ]


def test_a_history_that_has_lost_a_part_is_an_error_that_names_the_field():
    store = ResponseStore()
    put(store, "a")
    put(store, "b", previous="a")
    store.delete(ME, "a")
    with pytest.raises(ApiError, match="'a'") as caught:
        store.chain(ME, "b")
    assert caught.value.param == "previous_response_id"


def test_going_on_from_a_response_uses_all_before_it():
    store = ResponseStore(most=3)
    put(store, "a")
    put(store, "b", previous="a")
    put(store, "x")
    store.chain(ME, "b")
    put(store, "y")
    assert [holds(store, id) for id in "abxy"] == [True, True, False, True]


@pytest.mark.parametrize("limits", [{"most": 10}, {"most_bytes": 15_000}])
def test_a_key_that_keeps_many_takes_no_room_from_one_that_keeps_few(limits):
    store = ResponseStore(**limits)
    few, many = Owner("few"), [Owner("many", f"tenant {i}") for i in range(50)]
    put(store, "a", few)
    put(store, "b", few)
    for i, owner in enumerate(many):
        put(store, f"m{i}", owner)
    assert holds(store, "a", few)
    assert holds(store, "b", few)
    assert holds(store, "m49", many[49])
    assert not holds(store, "m0", many[0])
    assert len(store) <= 10 + 5
    assert store.bytes <= 15_000


def test_a_store_without_room_keeps_none():
    for store in (ResponseStore(most=0), ResponseStore(most_bytes=0)):
        put(store, "a")
        assert (holds(store, "a"), len(store), store.bytes) == (False, 0, 0)
