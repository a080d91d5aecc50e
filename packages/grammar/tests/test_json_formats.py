"""String formats, when they are asserted and when they are annotations."""

import pytest
from json_values import accepts

from phloem.grammar import UnsupportedConstraint
from phloem.grammar.json_schema import normalize

CASES = {
    "date": (
        ["2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30", "9999-01-01"],
        [
            "2023-02-29",
            "1900-02-29",
            "2024-13-01",
            "2024-04-31",
            "24-01-01",
            "2024-1-1",
            "0000-01-01",
        ],
    ),
    "time": (
        ["00:00:00Z", "23:59:59.999+05:30", "12:30:00-00:00", "08:00:00z"],
        ["24:00:00Z", "12:60:00Z", "12:30Z", "12:30:00", "1:00:00Z", "12:30:00+24:00"],
    ),
    "date-time": (
        ["2024-02-29T12:00:00Z", "1985-04-12T23:20:50.52+01:00"],
        ["2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29T12:00:00", "2024-02-29"],
    ),
    "duration": (
        ["P1D", "PT36H", "P4DT12H30M5S", "P2W", "P1Y2M3D", "PT0S"],
        ["P", "PT", "1D", "P1D2H", "P1S", "P2WT1H", "PT1D", "P1Y2D"],
    ),
    "email": (
        ["a@b.co", "ann.lee+x@example.com", "x_y@sub.example.org", "a@localhost"],
        [
            "a",
            "@b.co",
            "a@",
            "a@b..co",
            ".a@b.co",
            "a.@b.co",
            "a b@c.de",
            "a@-b.co",
            "a" * 65 + "@b.c",
        ],
    ),
    "hostname": (
        ["example.com", "a", "x-1.example", "3com.com", "a.b.c.d.e.f.g"],
        ["", ".", "-a.com", "a-.com", "a..b", "a_b.com", "example.com."],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426614174000", "ABCDEF00-0000-0000-0000-000000000000"],
        ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g", ""],
    ),
    "ipv4": (
        ["0.0.0.0", "255.255.255.255", "192.168.1.10"],
        ["256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ", "a.b.c.d"],
    ),
    "ipv6": (
        [
            "::",
            "::1",
            "1::",
            "2001:db8::8a2e:370:7334",
            "1:2:3:4:5:6:7:8",
            "::ffff:1.2.3.4",
            "1::8",
            "1:2:3:4:5:6:7::",
            "::2:3:4:5:6:7:8",
            "1:2:3:4:5:6:1.2.3.4",
        ],
        [
            "",
            ":",
            ":::",
            "1:2:3:4:5:6:7",
            "1::2::3",
            "12345::",
            "g::",
            "1:2:3:4:5:6:7:8:9",
            "::1.2.3",
            "1:2:3:4:5:6:7:1.2.3.4",
            "1:2:3:4:5:6:7:8::",
        ],
    ),
    "uri": (
        [
            "http://example.com/a?b=c#d",
            "mailto:a@b.co",
            "urn:isbn:0451450523",
            "ftp://[::1]:21/x",
            "a:",
            "http://u:p@h:8/%20",
        ],
        ["//example.com", "a/b", "", "http://a b", "http://x/%2", "1a:b", "http://x/{y}"],
    ),
    "uri-reference": (
        ["", "a/b", "/a", "//h/p", "?q", "#f", "http://x", "../a;b", "./a:b"],
        ["a b", "\\a", "%", "1:a", "#a#b"],
    ),
    "iri": (["http://exämple.com/ü?ö#ß", "http://例え.jp/"], ["ü", "http://a b"]),
    "iri-reference": (["ü/ä", "http://ö"], ["ü b"]),
    "json-pointer": (["", "/a/b", "/~0~1", "/"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "0#", "12/~1"], ["", "/a", "01", "-1", "0##"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_format_holds_its_texts_and_no_others(name):
    graph = normalize({"format": name})
    legal, illegal = CASES[name]
    assert [text for text in legal if not accepts(graph, text)] == []
    assert [text for text in illegal if accepts(graph, text)] == []
    assert accepts(graph, 17)


def test_formats_as_annotations_say_nothing():
    graph = normalize(
        {"properties": {"a": {"format": "date"}, "b": {"format": "x"}}}, formats="annotate"
    )
    assert accepts(graph, {"a": "never", "b": ""})


def test_a_format_goes_together_with_a_pattern_and_a_length():
    graph = normalize({"type": "string", "format": "date", "pattern": "^2024-02", "maxLength": 10})
    assert accepts(graph, "2024-02-29")
    assert not accepts(graph, "2024-03-01")
    assert not accepts(graph, "2024-02-30")


def test_formats_of_integers_are_bounds():
    for schema in ({"type": "integer", "format": "int32"}, {"format": "int32"}):
        graph = normalize(schema)
        for number in (0, -(2**31), 2**31 - 1, 5.0):
            assert accepts(graph, number)
        for number in (2**31, -(2**31) - 1, 0.5):
            assert not accepts(graph, number)
    assert accepts(normalize({"type": "string", "format": "uint64"}), "any")


def test_a_format_is_refused_where_it_could_not_apply_too():
    with pytest.raises(UnsupportedConstraint, match="'double' is not one of"):
        normalize({"type": "number", "format": "double"})


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(UnsupportedConstraint, match="'int7' is not one of") as caught:
        normalize({"items": {"format": "int7"}})
    assert (caught.value.pointer, caught.value.keyword) == ("/items", "format")
