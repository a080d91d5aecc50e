"""The benchmark of the prefix cache, tiny and without peers: that it runs and compares rightly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPERATIONS = ("key", "match", "read", "lock", "insert", "evict")


def python(*arguments, asked=None):
    run = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, input=asked
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def play(workload, *, sample=None, page_size=1):
    question = {
        "do": "play",
        "workload": workload,
        "page_size": page_size,
        "scale": 0.002,
        "sample": sample,
        "clock": "wall",
    }
    worker = ("-m", "benchmarks.radix_cache.worker", "phloem")
    return json.loads(python(*worker, asked=json.dumps(question)))


@pytest.fixture(scope="module")
def figures():
    options = ("--systems", "phloem", "--scale", "0.002", "--rounds", "1")
    return json.loads(python("-m", "benchmarks.radix_cache", "--json", *options))


def test_all_workloads_are_measured_at_both_page_sizes_by_every_kind_of_call(figures):
    assert figures["failed"] == {}
    assert list(figures["workloads"]) == ["chat", "documents", "agents", "leaves"]
    for name, pages in figures["workloads"].items():
        assert list(pages) == ["1", "16"]
        for systems in pages.values():
            # The others are too small here to evict.
            for operation in OPERATIONS if name == "leaves" else OPERATIONS[:-1]:
                measured = systems["phloem"][operation]
                assert measured["calls"] > 0
                assert measured["ops_per_s"] == pytest.approx(1e6 / measured["us"])


def test_the_small_figures_are_told(figures):
    assert figures["differences"] == []
    assert figures["micro"]["phloem"]["match_16000"] > 0
    assert figures["bytes_per_node"]["phloem"].keys() == {"1", "16"}
    assert figures["import_ms"] > 0


def test_the_drain_of_many_leaves_ends_empty():
    assert play("leaves")["left"] == 0


def test_a_sampled_drain_finds_the_same_until_it_first_skips_and_ends_empty_too():
    whole, sampled = play("leaves"), play("leaves", sample=10)
    same = sampled["sampled_after"]
    assert whole["sampled_after"] is None
    assert 200 < same < len(sampled["hits"]) < len(whole["hits"])
    assert sampled["hits"][:same] == whole["hits"][:same]
    assert sampled["tallies"]["evict"]["calls"] < whole["tallies"]["evict"]["calls"]
    assert sampled["left"] == whole["left"]


def test_the_stream_is_the_same_in_every_process():
    assert play("documents")["tokens_crc"] == play("documents", page_size=16)["tokens_crc"]


def test_differences_between_systems_are_told_in_sentences():
    code = """
from benchmarks.radix_cache.report import differences
def played(hits, crc=1, left=100, sampled_after=None):
    return dict(hits=hits, tokens_crc=crc, left=left, evicted=0, sampled_after=sampled_after)
first = played([1, 2, 3])
for other in (first, played([1, 2, 9]), played([1, 8], sampled_after=1), played([1, 2, 3], crc=2),
              played([1, 2, 3], left=200)):
    print(len(list(differences({"a": first, "b": other}, 1_000))), *differences(
        {"a": first, "b": other}, 1_000))
"""
    same, hits, sampled, stream, left = python("-c", code).splitlines()
    assert same == sampled == "0"
    assert "1 lookups of 3, first in number 2: 9 tokens, not 3" in hits
    assert "other tokens" in stream
    assert "has 200 left" in left


def test_a_placeholder_can_be_a_base_and_an_annotation_but_never_be_called(tmp_path):
    package = tmp_path / "engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('too large')", encoding="utf-8")
    (package / "tree.py").write_text(
        "from engine.heavy import Base, alloc\n"
        "class Tree(Base):\n"
        "    size: Base[int] = 3\n"
        "    def grow(self): return alloc(1)\n",
        encoding="utf-8",
    )
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from benchmarks.radix_cache.placeholders import install
install(real=["engine.tree"])
from engine.tree import Tree
print(Tree().size)
try:
    Tree().grow()
except RuntimeError as error:
    print(error)
"""
    size, error = python("-c", code).splitlines()
    assert size == "3"
    assert error.startswith("engine.heavy.alloc is only a placeholder")
