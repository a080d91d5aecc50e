"""Compiled constraints on disk, and in the process that decodes."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from phloem.grammar import Constraint, GrammarError
from phloem.grammar.service import (
    BackendSupport,
    CompiledConstraint,
    CompileService,
    GrammarLoader,
    Limits,
    check,
)
from phloem.grammar.service.store import Store

HERE = Path(__file__).parent
OVERHEAD = 32


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    import scripted_backend

    return scripted_backend


def store(folder: Path, limit: int = 1 << 20, backend: str = "fsm", vocabulary: str = "v") -> Store:
    return Store(folder, limit, backend, vocabulary)


def age(folder: Path) -> None:
    """Make all files an hour older."""
    for path in folder.iterdir():
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 3_600_000_000_000))


def test_what_is_put_is_found_by_another_store_of_the_same_kind_only(tmp_path):
    store(tmp_path / "new").put("key", b"\0data")
    assert store(tmp_path / "new").get("key") == b"\0data"
    assert store(tmp_path / "new").get("other key") is None
    assert store(tmp_path / "new", backend="xgrammar").get("key") is None
    assert store(tmp_path / "new", vocabulary="w").get("key") is None


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:-1] + b"?"])
def test_a_damaged_file_is_ignored_and_removed(tmp_path, damage):
    store(tmp_path).put("key", b"data")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert store(tmp_path).get("key") is None
    assert not path.exists()
    store(tmp_path).put("key", b"again")
    assert store(tmp_path).get("key") == b"again"


def test_what_was_read_longest_ago_goes_first(tmp_path):
    kept = store(tmp_path, limit=3 * (100 + OVERHEAD))
    for key in "abc":
        kept.put(key, bytes(100))
        age(tmp_path)
    assert kept.get("a") is not None
    kept.put("d", bytes(100))
    assert [kept.get(key) is not None for key in "abcd"] == [True, False, True, True]


def test_the_bound_holds_for_what_was_there_before_and_for_what_writers_left(tmp_path):
    for key in "abc":
        store(tmp_path).put(key, bytes(100))
    (tmp_path / ".writing-x").write_bytes(bytes(1000))
    age(tmp_path)
    store(tmp_path, limit=300).put("d", bytes(100))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 300
    assert store(tmp_path).get("d") == bytes(100)


def test_what_is_larger_than_the_bound_is_not_kept(tmp_path):
    kept = store(tmp_path, limit=300)
    kept.put("small", bytes(100))
    kept.put("large", bytes(300))
    assert kept.get("large") is None
    assert kept.get("small") is not None


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    kept = store(blocked / "folder")
    with caplog.at_level(logging.WARNING):
        kept.put("a", b"a")
        kept.put("b", b"b")
    assert kept.get("a") is None
    assert len(caplog.records) == 1
    assert "not kept on disk" in caplog.text


def test_a_service_finds_what_an_earlier_one_compiled_without_a_worker(tmp_path, backend):
    def make() -> CompileService:
        return CompileService(
            backend.NAME,
            backend.ScriptedVocabulary(),
            folder=tmp_path,
            limits=Limits(workers=1, nice=0),
        )

    constraint = Constraint.regex("echo kept")
    with make() as first:
        compiled = first.compile(constraint)
        with pytest.raises(GrammarError):
            first.compile(Constraint.regex("malformed x"))
    with make() as second:
        assert second.compile(constraint) == compiled
        assert second.compile(constraint) == compiled
        assert second.worker_pids == []
        assert second.stats == (0, 0, 1, 1)
    assert len(list(tmp_path.iterdir())) == 1


def test_one_grammar_is_loaded_once_while_it_is_kept(backend):
    loader = GrammarLoader(backend.create(backend.ScriptedVocabulary()), capacity=2)
    a, b, c = (CompiledConstraint(key, backend.NAME, key.encode()) for key in "abc")
    first, second = loader.load(a), loader.load(b)
    assert first.serialize() == b"a"
    assert loader.load(a) is first
    loader.load(c)
    assert loader.load(a) is first
    assert loader.load(b) is not second


def test_what_the_loader_cannot_read_is_refused(backend):
    loader = GrammarLoader(backend.create(backend.ScriptedVocabulary()))
    with pytest.raises(GrammarError, match="damaged"):
        loader.load(CompiledConstraint("a", backend.NAME, b"damaged"))
    with pytest.raises(GrammarError, match="compiled by 'fsm'"):
        loader.load(CompiledConstraint("a", "fsm", b""))
    with pytest.raises(ValueError, match="capacity is 0"):
        GrammarLoader(backend.create(backend.ScriptedVocabulary()), capacity=0)


def test_a_report_says_which_backend_supports_a_constraint_and_where_others_do_not(backend):
    def create(name: str):
        if name == "absent":
            raise ImportError("absent is not installed")
        return backend.create(None)

    def report(text: str):
        return check(Constraint.regex(text), ["absent", "scripted"], create)

    missing = BackendSupport("absent", False, "absent is not installed")
    good = report("echo x")
    assert good.backends == (missing, BackendSupport("scripted", True))
    assert good.supported
    bad = report("unsupported /x")
    assert bad.backends[1] == BackendSupport(
        "scripted",
        False,
        "'uniqueItems' at /x is not supported: leave it out",
        "/x",
        "uniqueItems",
        "leave it out",
    )
    assert not bad.supported
    malformed = BackendSupport("scripted", False, "it is", final=True)
    assert report("malformed it is").backends[1] == malformed


def test_a_worker_gives_the_same_report(backend):
    names = [backend.NAME, backend.ABSENT]
    limits = Limits(workers=1, nice=0, seconds=60)
    with CompileService(backend.NAME, backend.ScriptedVocabulary(), limits=limits) as service:
        for text in ("echo x", "unsupported /x", "malformed x"):
            constraint = Constraint.regex(text)

            def create(name: str):
                return getattr(backend, name.partition(":")[2])(None)

            assert service.check(constraint, names).result(60) == check(constraint, names, create)


def test_importing_the_service_imports_no_backend():
    code = (
        "import sys; import phloem.grammar.service; "
        "print([name for name in ('torch', 'xgrammar', 'llguidance') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_compiled_constraints_can_be_pickled():
    compiled = CompiledConstraint("key", "fsm", b"data")
    assert pickle.loads(pickle.dumps(compiled)) == compiled
