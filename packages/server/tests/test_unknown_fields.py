"""Fields that no endpoint knows, where they are let pass."""

from __future__ import annotations

import logging

from phloem.server.http.unknown_fields import HEADER, UnknownFields


def told(names, unknown=None):
    scope = {}
    (unknown or UnknownFields()).tell(scope, names)
    ((name, value),) = scope["state"]["response_headers"]
    assert name == HEADER
    return value.decode()


def test_the_header_names_them():
    assert told(["zzz", "a.b"]) == "zzz, a.b"


def test_no_name_can_end_the_header_or_fill_it():
    assert told(["a\r\nset-cookie: x", "ž"]) == "a??set-cookie??x, ?"
    assert len(told(["x" * 10**6] * 100)) < 1100


def test_headers_that_others_have_set_stay():
    scope = {"state": {"response_headers": [(b"a", b"b")]}}
    UnknownFields().tell(scope, ["z"])
    assert scope["state"]["response_headers"] == [(b"a", b"b"), (HEADER, b"z")]


def test_the_log_has_a_line_a_minute_with_how_many_there_were(caplog):
    now = [100.0]
    unknown = UnknownFields(lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for seconds in (0, 1, 58, 2, 1):
            now[0] += seconds
            told(["zzz"], unknown)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["1", "3"]
    assert all("zzz" in line and "--strict-fields" in line for line in lines)
