"""Pictures of a tree: what they show is what is there, in every format."""

import json
import random
import re
import shutil
import subprocess
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from radix_ops_support import OPERATIONS, Life

from phloem.radix_cache import Key, RadixCache, Tier

STATEMENT = re.compile(
    r"""
    (?P<one>\w+)
    (?: \s -> \s (?P<other>\w+) | \s \[ (?P<attributes> (?: [^"\]] | "(?:[^"\\]|\\.)*" )* ) \] )
    ;
    """,
    re.VERBOSE,
)
LABEL = re.compile(r'label="((?:[^"\\]|\\.)*)"')


def put(cache, tokens, namespace=(), **options):
    return cache.insert(Key(tokens, namespace), [0] * len(tokens), **options)


def parse_dot(text):
    """The labels of the nodes and the edges of a digraph; fails at anything else."""
    first, direction, default, *lines, last = text.split("\n")
    assert (first, direction.strip(), last) == ("digraph radix_cache {", "rankdir=LR;", "}")
    assert default.strip().startswith("node [")
    labels, edges = {}, []
    for line in lines:
        statement = STATEMENT.fullmatch(line.strip())
        assert statement, line
        if statement["other"]:
            edges.append((statement["one"], statement["other"]))
        else:
            label = LABEL.search(statement["attributes"])[1]
            labels[statement["one"]] = re.sub(
                r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), label
            )
    return labels, edges


@pytest.fixture
def cache():
    cache = RadixCache(page_size=2, policy="priority", clock=lambda: 7.0, host_tier=True)
    put(cache, range(10), ("a",), priority=3)
    for backup in cache.backups():
        cache.backed_up(backup, [0] * backup.length)
    cache.match(Key([0, 1, 2, 3], ("a",)))
    put(cache, [0, 1, 2, 3, 50, 51], ("a",))
    put(cache, [9, 9])
    cache.lock(cache.match(Key([0, 1, 2, 3, 50, 51], ("a",))))
    cache.evict(100)
    return cache


def test_text_shows_the_tiers_of_a_cache_that_has_two(cache):
    assert cache.render() == (
        "namespace ('a',)\n"
        "  [0, 4) 0 1 2 3  locks=1 hits=2 tiers=device+host\n"
        "    [4, 10) 4 5 6 7 8 9  locks=0 hits=0 tiers=host\n"
        "    [4, 6) 50 51  locks=1 hits=1 tiers=device"
    )


def test_text_of_one_tier_names_no_tier():
    cache = RadixCache()
    put(cache, range(8))
    assert cache.render("text") == "namespace ()\n  [0, 8) 0 1 2 3 4 5 ...  locks=0 hits=0"


def test_json_shows_every_field(cache):
    document = json.loads(cache.render("json"))
    assert document["page_size"] == 2
    assert document["policy"] == "priority"
    sizes = cache.sizes
    assert document["sizes"] == {
        "device": {"evictable": sizes.evictable, "protected": sizes.protected},
        "host": {"evictable": sizes.host.evictable, "protected": sizes.host.protected},
    }
    (space,) = document["namespaces"]
    assert space["namespace"] == "('a',)"
    assert space["nodes"][0] == {
        "id": 0,
        "parent": None,
        "start": 0,
        "end": 4,
        "first": [0, 1, 2, 3],
        "hits": 2,
        "idle": 0.0,
        "priority": 3,
        "device": {"locks": 1, "evictable": False},
        "host": {"locks": 0, "evictable": True},
    }
    assert [node["parent"] for node in space["nodes"]] == [None, 0, 0]
    assert [node["device"] is None for node in space["nodes"]] == [False, True, False]


def test_idle_is_the_time_since_the_last_use():
    now = [0.0]
    cache = RadixCache(clock=lambda: now[0])
    put(cache, range(4))
    now[0] = 2.5
    assert json.loads(cache.render("json"))["namespaces"][0]["nodes"][0]["idle"] == 2.5


def test_dot_draws_every_node_and_edge(cache):
    labels, edges = parse_dot(cache.render("dot"))
    assert labels == {
        "top0": "namespace ('a',)",
        "n0": "[0, 4)\n0 1 2 3\nlocks=1 hits=2\ndevice+host",
        "n1": "[4, 10)\n4 5 6 7 8 9\nlocks=0 hits=0\nhost",
        "n2": "[4, 6)\n50 51\nlocks=1 hits=1\ndevice",
    }
    assert edges == [("top0", "n0"), ("n0", "n1"), ("n0", "n2")]
    assert re.search(r"n1 \[.*style=dashed\]", cache.render("dot"))
    assert re.search(r"n2 \[.*style=bold\]", cache.render("dot"))


HOSTILE = ('"];\n}', "\\", "\\n", "<b>é", b'\x00"', ("\ud800", None))


def test_dot_quotes_what_a_namespace_contains():
    cache = RadixCache()
    put(cache, [1], HOSTILE)
    labels, edges = parse_dot(cache.render("dot"))
    assert labels["top0"] == f"namespace {HOSTILE!r}"
    assert edges == [("top0", "n0")]


def test_graphviz_reads_it(cache):
    program = shutil.which("dot")
    if program is None:
        pytest.skip("Graphviz is not installed: its program `dot` is not on the path")
    put(cache, [1, 1], HOSTILE)
    drawn = subprocess.run(
        [program, "-Tplain"], input=cache.render("dot").encode(), capture_output=True, check=True
    )
    assert drawn.stdout.count(b"\nedge ") == len(parse_dot(cache.render("dot"))[1])


def test_an_empty_cache_has_a_picture_in_every_format():
    cache = RadixCache()
    assert cache.render() == ""
    assert json.loads(cache.render("json"))["namespaces"] == []
    assert parse_dot(cache.render("dot")) == ({}, [])


@pytest.mark.parametrize(
    ("format", "limit", "said"), [("svg", None, "format 'svg'"), ("text", -1, "limit -1")]
)
def test_what_cannot_be_drawn_is_refused(format, limit, said):
    with pytest.raises(ValueError, match=said):
        RadixCache().render(format, limit)


def tree(cache, limit=None):
    """The JSON's nodes by id, with the tokens and nodes that each stands for."""
    spaces = json.loads(cache.render("json", limit))["namespaces"]
    nodes = {node["id"]: node for space in spaces for node in space["nodes"]}
    hidden = [each.get("hidden", {"nodes": 0, "tokens": 0}) for each in [*spaces, *nodes.values()]]
    return nodes, hidden


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([1, 4, 16]), st.booleans(), OPERATIONS, st.integers(0, 12))
def test_a_limit_shows_the_heaviest_and_counts_the_rest(page_size, host_tier, operations, limit):
    life = Life(page_size, host_tier, {})
    for operation in operations:
        life.do(*operation)
    every, nothing_hidden = tree(life.cache)
    assert len(every) == life.cache.stats.nodes
    assert all(each == {"nodes": 0, "tokens": 0} for each in nothing_hidden)
    labels, edges = parse_dot(life.cache.render("dot"))
    assert len(edges) == len(every) == len(labels) - len(life.cache.namespaces)
    weights = {
        at: sum(node["end"] - node["start"] for node in every.values() if at in _path(node, every))
        for at in every
    }
    shown, hidden = tree(life.cache, limit)
    assert len(shown) == min(limit, len(every))
    assert all(node["parent"] is None or node["parent"] in shown for node in shown.values())
    assert len(shown) + sum(each["nodes"] for each in hidden) == len(every)
    tokens = sum(node["end"] - node["start"] for node in shown.values())
    assert tokens + sum(each["tokens"] for each in hidden) == sum(
        node["end"] - node["start"] for node in every.values()
    )
    heaviest = sorted(weights.values(), reverse=True)[:limit]
    shown_weights = [_weight(at, shown) for at in shown]
    assert sorted(shown_weights, reverse=True) == heaviest


def _path(node, nodes):
    """The ids of a node and all above it."""
    path = {node["id"]}
    while node["parent"] is not None:
        path.add(node["parent"])
        node = nodes[node["parent"]]
    return path


def _weight(at, nodes):
    return sum(
        node["end"] - node["start"] + node.get("hidden", {"tokens": 0})["tokens"]
        for node in nodes.values()
        if at in _path(node, nodes)
    )


def test_text_and_dot_say_what_a_limit_hides():
    cache = RadixCache()
    for last in range(5):
        put(cache, [1, 2, last, last])
    assert cache.render("text", 1) == (
        "namespace ()\n  [0, 2) 1 2  locks=0 hits=0  and 5 nodes more below, of 10 tokens"
    )
    labels, _ = parse_dot(cache.render("dot", 0))
    assert labels == {"top0": "namespace ()\nand 6 nodes more below, of 12 tokens"}


def test_pictures_beside_a_writing_thread_show_only_what_was_cached():
    # A token says where it belongs: its position in the lower digits, its branch above.
    cache = RadixCache(page_size=2)
    paths = [[*range(20), *range(branch * 100 + 20, branch * 100 + 40)] for branch in range(1, 20)]
    stop = threading.Event()
    problems = []

    def look():
        try:
            while not stop.is_set():
                for node in tree(cache)[0].values():
                    length = node["end"] - node["start"]
                    assert length > 0
                    assert length % 2 == 0
                    assert [token % 100 for token in node["first"]] == list(
                        range(node["start"], node["end"])
                    )[:6]
                parse_dot(cache.render("dot", 5))
                cache.render()
        except Exception as problem:
            problems.append(problem)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        choice = random.Random(7)
        for turn in range(4000):
            put(cache, choice.choice(paths)[: choice.randrange(41)])
            if turn % 2:
                cache.match(Key(choice.choice(paths)[: choice.randrange(41)]))
            if turn % 3 == 0:
                cache.evict(choice.randrange(40))
    finally:
        stop.set()
        reader.join()
    assert not problems


def test_text_is_not_indented_without_end():
    cache = RadixCache()
    for end in range(1, 1001):
        put(cache, range(end))
    _, *lines = cache.render().split("\n")
    assert lines[0].startswith("  [0, 1) 0")
    assert lines[39].startswith("  " * 40 + "[39, 40) 39")
    assert lines[40].startswith("  " * 40 + "(depth 41) [40, 41) 40")
    assert lines[999].startswith("  " * 40 + "(depth 1000) [999, 1000) 999")
    assert max(map(len, lines)) < 140


def test_a_deep_tree_is_drawn_without_recursion():
    cache = RadixCache()
    for end in range(1, 1500):
        put(cache, range(end))
    assert len(tree(cache)[0]) == 1499
    assert cache.sizes.total == 1499
    assert cache.peek(Key(range(1499)), Tier.DEVICE) == 1499
