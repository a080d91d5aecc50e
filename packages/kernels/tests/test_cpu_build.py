from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import phloem.kernels.cpu_backend.library as library_module
from phloem.kernels import get_ops
from phloem.kernels.cpu_backend import build, cache, machine
from phloem.kernels.cpu_backend.__main__ import main
from phloem.kernels.cpu_backend.build import BuildError, recipe_for
from phloem.kernels.cpu_backend.library import Library, library_status, load_library

SOURCE = """
extern "C" const char* phloem_sources() { return PHLOEM_SOURCES; }
extern "C" int answer() { return 42; }
"""
VNNI = "fpu avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni"

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)
needs_shell = pytest.mark.skipif(os.name != "posix", reason="needs a shell")


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Sources that compile in no time, no prebuilt library, and nothing loaded before."""
    native = tmp_path / "native"
    native.mkdir()
    (native / "answer.cpp").write_text(SOURCE)
    monkeypatch.setattr(build, "NATIVE", native)
    monkeypatch.setattr(library_module, "PREBUILT", tmp_path / "prebuilt")
    # Those of this processor, whatever --native-isa says: no kernels are compiled here.
    usable = machine.usable_instruction_sets
    monkeypatch.setattr(library_module, "usable_instruction_sets", usable)
    monkeypatch.delenv("CXX", raising=False)
    forget()
    yield
    forget()


def forget():
    library_module._load.cache_clear()
    library_module._made_by.cache_clear()
    library_module._load_prebuilt.cache_clear()


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """A compiler that notes each library that it makes; gives a way to count them."""
    compiler, notes = tmp_path / "counting-compiler", tmp_path / "notes"
    real = build.find_compiler().command[0]
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo linked >> {notes};; esac\nexec {real} "$@"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    return lambda: len(notes.read_text().splitlines()) if notes.exists() else 0


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")


def answer(library):
    return library.function("answer", restype=ctypes.c_int)()


# The processor


def test_instruction_sets_come_best_first():
    both = frozenset(VNNI.split())
    assert machine.instruction_sets_with(both) == ("avx512vnni", "avx2", "portable")
    assert machine.instruction_sets_with(both - {"avx512vl"}) == ("avx2", "portable")
    assert machine.instruction_sets_with(both - {"f16c"}) == ("portable",)
    assert machine.instruction_sets_with(frozenset()) == ("portable",)


def test_only_features_of_all_processors_count():
    text = f"processor\t: 0\nflags\t\t: {VNNI}\n\nprocessor\t: 1\nflags\t\t: fpu avx2 fma f16c\n"
    assert machine.features_in_cpuinfo(text) == {"fpu", "avx2", "fma", "f16c"}
    assert machine.features_in_cpuinfo("Features\t: asimd\n") == frozenset()


def test_every_machine_can_use_the_portable_library():
    assert machine.usable_instruction_sets()[-1] == "portable"
    assert set(machine.usable_instruction_sets()) <= set(machine.platform_instruction_sets())


# The cache


@needs_compiler
@needs_shell
def test_a_library_is_compiled_once_and_then_found(linked, tmp_path):
    first = load_library("portable", cache_dir=tmp_path / "cache")
    assert answer(first) == 42
    assert load_library("portable", cache_dir=tmp_path / "cache") is first
    forget()
    assert load_library("portable", cache_dir=tmp_path / "cache").path == first.path
    assert linked() == 1


@needs_compiler
def test_changed_sources_are_compiled_again(tmp_path):
    folder = tmp_path / "cache"
    assert answer(Library(cache.ensure(recipe_for("portable"), folder), "portable")) == 42
    (build.NATIVE / "answer.cpp").write_text(SOURCE.replace("42", "43"))
    assert answer(Library(cache.ensure(recipe_for("portable"), folder), "portable")) == 43


def test_a_header_counts_as_a_source():
    before = build.source_fingerprint()
    (build.NATIVE / "answer.h").write_text("")
    assert build.source_fingerprint() != before


@needs_compiler
def test_the_key_tells_apart_whatever_makes_another_library(monkeypatch):
    recipe = recipe_for("avx2")
    compiler = dataclasses.replace(recipe.compiler, version="another")
    others = [
        dataclasses.replace(recipe, isa="portable"),
        dataclasses.replace(recipe, compiler=compiler),
        dataclasses.replace(recipe, flags=(*recipe.flags, "-g")),
        dataclasses.replace(recipe, sources="others"),
        recipe_for("avx2", "address"),
        recipe_for("avx2", tuned=False),
    ]
    assert len({recipe.key, *(other.key for other in others)}) == 7
    tuned, untuned = recipe.key, recipe_for("avx2", tuned=False).key
    assert recipe_for("avx2").key == tuned
    monkeypatch.setattr(build, "processor_model", lambda: "another processor")
    assert recipe_for("avx2").key != tuned
    assert recipe_for("avx2", tuned=False).key == untuned


@needs_compiler
@needs_shell
@pytest.mark.parametrize("kept", [0, 1_000, -1])
def test_a_library_that_is_not_whole_is_compiled_again(linked, tmp_path, kept):
    folder = tmp_path / "cache"
    path = cache.ensure(recipe_for("portable"), folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    assert cache.find(recipe_for("portable"), folder) is None
    again = cache.ensure(recipe_for("portable"), folder)
    assert answer(Library(again, "portable")) == 42
    assert again.read_bytes() == whole
    assert linked() == 2


@needs_compiler
@needs_shell
@pytest.mark.skipif(cache.fcntl is None, reason="needs file locks")
def test_of_many_that_come_at_once_one_compiles(linked, tmp_path):
    recipe = recipe_for("portable")
    with ThreadPoolExecutor(4) as pool:
        steps = [pool.submit(cache.ensure, recipe, tmp_path / "cache") for _ in range(4)]
        paths = {step.result() for step in steps}
    assert linked() == 1
    assert [answer(Library(path, "portable")) for path in paths] == [42]


@needs_compiler
def test_without_file_locks_all_get_a_whole_library(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "fcntl", None)
    recipe = recipe_for("portable")
    with ThreadPoolExecutor(3) as pool:
        steps = [pool.submit(cache.ensure, recipe, tmp_path / "cache") for _ in range(3)]
        paths = [step.result() for step in steps]
    assert [answer(Library(path, "portable")) for path in paths] == [42] * 3


@needs_compiler
def test_what_a_process_that_died_has_left_does_no_harm(tmp_path):
    folder = tmp_path / "cache"
    (folder / ".building-left").mkdir(parents=True)
    (folder / "lock").write_text("")
    (folder / f"portable-{recipe_for('portable').key}-half{build.LIBRARY_SUFFIX}").write_text("")
    assert answer(load_library("portable", cache_dir=folder)) == 42


def age(path, days):
    then = time.time() - days * 24 * 60 * 60
    os.utime(path, (then, then))


@needs_compiler
def test_who_compiles_removes_what_is_out_of_use(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    for name, days in {
        f"avx2-old-1{build.LIBRARY_SUFFIX}": 31,
        f"avx2-new-1{build.LIBRARY_SUFFIX}": 29,
        ".building-old": 2,
        ".building-new": 0,
        "notes": 400,
    }.items():
        path = folder / name
        if name.startswith("."):
            path.mkdir()
            path = path / "half.o"
        path.write_text("")
        age(folder / name, days)
    made = cache.ensure(recipe_for("portable"), folder).name
    left = {path.name for path in folder.iterdir()} - {made, "lock"}
    assert left == {f"avx2-new-1{build.LIBRARY_SUFFIX}", ".building-new", "notes"}


@needs_compiler
def test_a_library_that_is_asked_for_stays_in_the_cache(tmp_path):
    folder = tmp_path / "cache"
    path = cache.ensure(recipe_for("portable"), folder)
    age(path, 400)
    assert cache.ensure(recipe_for("portable"), folder) == path
    (build.NATIVE / "answer.cpp").write_text(SOURCE.replace("42", "43"))
    assert cache.ensure(recipe_for("portable"), folder) != path
    assert path.exists()


@needs_compiler
def test_nothing_but_the_library_and_the_lock_stays_in_the_cache(tmp_path):
    path = cache.ensure(recipe_for("portable"), tmp_path / "cache")
    assert {entry.name for entry in path.parent.iterdir()} <= {path.name, "lock"}


@needs_compiler
def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with caplog.at_level(logging.WARNING):
        assert answer(load_library("portable", cache_dir=tmp_path / "file" / "cache")) == 42
    assert "compiled for this process alone" in caplog.text
    if os.name == "posix":
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders of Linux")
def test_the_cache_lies_where_the_desktop_standard_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_cache_dir() == tmp_path / "phloem" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.default_cache_dir() == Path.home() / ".cache" / "phloem" / "kernels"


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """A user of whom nobody knows a home; gives the folder for temporary files."""

    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    cache._temporary_folder.cache_clear()
    yield folder
    cache._temporary_folder.cache_clear()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders of Linux")
def test_without_a_home_the_cache_lies_among_temporary_files_and_is_found_again(homeless):
    found = cache.default_cache_dir()
    assert found == homeless / f"phloem-{os.getuid()}" / "kernels"
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    cache._temporary_folder.cache_clear()
    assert cache.default_cache_dir() == found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders of Linux")
@pytest.mark.parametrize("planted", ["writable", "link", "file"])
def test_a_temporary_folder_that_others_could_write_is_not_trusted(homeless, planted):
    known = homeless / f"phloem-{os.getuid()}"
    if planted == "writable":
        known.mkdir()
        known.chmod(0o777)
    elif planted == "link":
        (homeless / "elsewhere").mkdir()
        known.symlink_to(homeless / "elsewhere")
    else:
        known.write_text("")
    own = cache.default_cache_dir().parent
    assert own != known
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert cache.default_cache_dir().parent == own


# The compiler


@needs_compiler
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("int broken() { return nonsense; }", "nonsense"),
        ("int m(); int n() { return m(); }", "m()"),
    ],
)
def test_an_error_of_the_compiler_is_shown(tmp_path, broken, said):
    (build.NATIVE / "broken.cpp").write_text(broken)
    pattern = rf"(?s)do not compile: .*ended with code .*{re.escape(said)}"
    with pytest.raises(BuildError, match=pattern):
        load_library("portable", cache_dir=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] in (["lock"], [])


@needs_compiler
@needs_shell
def test_what_did_not_compile_is_not_compiled_again_until_it_has_changed(linked, tmp_path):
    source = build.NATIVE / "answer.cpp"
    source.write_text("int m(); int n() { return m(); }")
    for _ in range(2):
        with pytest.raises(BuildError, match=r"m\(\)"):
            load_library("portable", cache_dir=tmp_path / "cache")
    assert linked() == 1
    source.write_text(SOURCE)
    assert answer(load_library("portable", cache_dir=tmp_path / "cache")) == 42
    assert linked() == 2


@needs_compiler
def test_the_variable_cxx_names_the_compiler_and_its_options(monkeypatch):
    path = build.find_compiler().command[0]
    monkeypatch.setenv("CXX", f"{path} -g")
    assert build.find_compiler().command == (path, "-g")


@needs_shell
def test_a_name_without_a_working_compiler_behind_it_is_passed_over(tmp_path, monkeypatch):
    for name, code in (("c++", 1), ("clang++", 0)):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho some compiler 1.2\nexit {code}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = build.Compiler((str(tmp_path / "clang++"),), "some compiler 1.2")
    assert build.find_compiler() == expected


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -g")
    with pytest.raises(BuildError, match="CXX names the compiler 'no-such-compiler -g'"):
        build.find_compiler()


@pytest.fixture
def formless(tmp_path):
    """A file that may be executed and has no format that the system knows."""
    path = tmp_path / "formless"
    path.write_bytes(b"\0\1\2\3")
    path.chmod(0o755)
    return path


@needs_shell
@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("g++ 'x", r"which is no command \(No closing quotation\): correct or unset it"),
        ("''", "which does not run: correct or unset it"),
        ("{formless}", "which does not run: correct or unset it"),
    ],
)
def test_a_cxx_that_cannot_be_run_is_named_and_torch_computes(
    formless, tmp_path, monkeypatch, named, reason
):
    named = named.format(formless=formless)
    monkeypatch.setenv("CXX", named)
    pattern = f"CXX names the compiler {re.escape(repr(named))}, {reason}"
    status = library_status(tmp_path)
    assert not status.usable
    assert re.search(pattern, status.reason)
    with pytest.raises(BuildError, match=pattern):
        load_library(cache_dir=tmp_path)
    with pytest.warns(RuntimeWarning, match=pattern) as warned:
        assert get_ops("auto").name == "torch"
    assert len(warned) == 1


@needs_compiler
@pytest.mark.parametrize("named", ["", " ", "\t"])
def test_a_blank_cxx_names_no_compiler(monkeypatch, named):
    expected = build.find_compiler()
    monkeypatch.setenv("CXX", named)
    assert build.find_compiler() == expected


@needs_compiler
@needs_shell
def test_the_next_compiler_is_taken_where_the_first_has_no_format(formless, monkeypatch):
    real = build.find_compiler().command[0]
    formless.rename(formless.with_name("c++"))
    (formless.parent / "g++").symlink_to(real)
    monkeypatch.setenv("PATH", str(formless.parent))
    assert build.find_compiler().command == (str(formless.parent / "g++"),)


@needs_shell
def test_a_compiler_that_has_gone_is_an_error_of_the_build(formless, tmp_path):
    compiler = build.Compiler((str(formless),), "gone")
    recipe = build.Recipe("portable", compiler, (), "sources")
    with pytest.raises(BuildError, match=f"compiler {re.escape(str(formless))} does not run: "):
        build.compile_library(recipe, tmp_path)


def test_without_a_compiler_the_error_says_what_to_install(no_compiler, tmp_path):
    with pytest.raises(BuildError, match=r"there is no C\+\+ compiler .* install one"):
        load_library(cache_dir=tmp_path)
    status = library_status(tmp_path)
    assert (status.usable, "there is no C++ compiler" in status.reason) == (False, True)


def test_an_instruction_set_that_the_processor_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(library_module, "usable_instruction_sets", lambda: ("avx2", "portable"))
    with pytest.raises(ValueError, match="'avx512vnni' does not run on this processor: use avx2"):
        load_library("avx512vnni")


@needs_compiler
def test_a_function_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no function 'question'"):
        load_library("portable", cache_dir=tmp_path).function("question")


@needs_compiler
def test_the_status_tells_where_the_library_comes_from_and_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "usable_instruction_sets", lambda: ("portable",))
    folder = tmp_path / "cache"
    assert f"to be compiled at first use into {folder}" in library_status(folder).reason
    assert not folder.exists()
    path = load_library(cache_dir=folder).path
    assert f"cached in {path}" in library_status(folder).reason
    build.build_prebuilt("portable", library_module.PREBUILT)
    forget()
    assert library_status(folder).reason == "portable, prebuilt"


# Prebuilt libraries


@needs_compiler
def test_a_prebuilt_library_needs_no_compiler(tmp_path, monkeypatch):
    path = build.build_prebuilt("portable", library_module.PREBUILT)
    monkeypatch.setenv("PATH", "")
    library = load_library("portable", cache_dir=tmp_path / "cache")
    assert (answer(library), library.path) == (42, path)
    assert not (tmp_path / "cache").exists()


@needs_compiler
def test_a_prebuilt_library_of_other_sources_is_not_taken(tmp_path):
    build.build_prebuilt("portable", library_module.PREBUILT)
    (build.NATIVE / "answer.cpp").write_text(SOURCE.replace("42", "43"))
    assert answer(load_library("portable", cache_dir=tmp_path / "cache")) == 43


@needs_compiler
def test_a_prebuilt_library_that_does_not_load_is_not_taken(tmp_path, caplog):
    library_module.PREBUILT.mkdir()
    (library_module.PREBUILT / build.prebuilt_name("portable")).write_text("no library")
    assert answer(load_library("portable", cache_dir=tmp_path / "cache")) == 42
    assert "the prebuilt kernels do not load" in caplog.text


@needs_compiler
def test_without_a_compiler_a_prebuilt_library_for_less_than_the_best_is_taken(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(library_module, "usable_instruction_sets", lambda: ("avx2", "portable"))
    path = build.build_prebuilt("portable", library_module.PREBUILT)
    monkeypatch.setenv("PATH", "")
    assert load_library(cache_dir=tmp_path / "cache").path == path
    assert library_status(tmp_path / "cache").reason.startswith("portable, prebuilt; for avx2")
    with pytest.raises(BuildError):
        load_library("avx2", cache_dir=tmp_path / "cache")


# The command


@needs_compiler
def test_the_command_makes_the_libraries_of_a_wheel(tmp_path, capsys):
    assert main(["build", "--out", str(tmp_path / "wheel"), "--isa", "all", "--jobs", "1"]) == 0
    made = {path.name for path in (tmp_path / "wheel").iterdir()}
    assert made == {build.prebuilt_name(isa) for isa in machine.platform_instruction_sets()}
    assert len(capsys.readouterr().out.splitlines()) == len(made)


@needs_compiler
def test_the_command_fills_the_cache(tmp_path):
    assert main(["build", "--isa", "portable", "--cache-dir", str(tmp_path / "cache")]) == 0
    assert cache.find(recipe_for("portable"), tmp_path / "cache")


def test_the_command_fails_with_the_reason(no_compiler, capsys):
    assert main(["build"]) == 1
    assert "there is no C++ compiler" in capsys.readouterr().err
