from __future__ import annotations

import dataclasses

import pytest

from phloem.model_runner.sources import ModelFolder
from phloem.server import doctor


@pytest.fixture(autouse=True)
def model_folder(tmp_path, monkeypatch):
    """The default model is there; looking for the real one takes seconds."""
    folder = ModelFolder(tmp_path / "smollm2", "smollm2", "a test")
    monkeypatch.setattr(doctor, "resolve_model", lambda *args, **options: folder)
    return folder


@pytest.fixture
def report(tmp_path):
    return doctor.examine(tmp_path)


def test_the_report_names_everything_that_a_bug_report_needs(report):
    names = [name for name, _ in doctor.lines(report)]
    assert {"phloem-scheduler", "phloem-grammar"} <= set(names)
    assert {"python", "torch", "cpu", "memory", "gpu", "kernels: torch"} <= set(names)
    assert report.libraries["torch"]
    assert report.cpu.usable_cores >= 1
    assert 0 < report.available_bytes <= report.memory_bytes
    assert report.problems == ()


def test_the_libraries_for_constraints_are_usable_or_come_with_their_cure(report):
    found = dataclasses.replace(report, grammar_libraries={"xgrammar": "1.2", "llguidance": None})
    values = dict(doctor.lines(found))
    assert values["constraints: fsm"] == "usable"
    assert values["constraints: xgrammar"] == "usable (1.2)"
    assert "pip install 'phloem-server[grammar]'" in values["constraints: llguidance"]


def test_the_default_model_is_shown_with_its_folder(report, model_folder, tmp_path):
    assert report.model == doctor.Model(
        "smollm2", True, f"{model_folder.path} (a test)", str(tmp_path)
    )


def test_looking_at_a_model_that_is_not_converted_does_not_convert_it(tmp_path, monkeypatch):
    def convert(*args, progress, **options):
        progress("converting", 1, 2)
        raise AssertionError("it was converted")

    monkeypatch.setattr(doctor, "resolve_model", convert)
    model = doctor.examine(tmp_path).model
    assert (model.present, model.found) == (True, "present, converted at its first use")


def test_an_absent_model_comes_with_the_command_that_gets_it(tmp_path, monkeypatch):
    def absent(*args, **options):
        raise ValueError("not here: get it with `phloem pull smollm2`")

    monkeypatch.setattr(doctor, "resolve_model", absent)
    model = doctor.examine(tmp_path).model
    assert (model.present, "phloem pull smollm2" in model.found) == (False, True)


def test_the_features_of_the_processor_are_read_where_linux_tells_them(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Test CPU\nflags\t\t: fpu avx2 amx_tile\n\nmodel name\t: Other\n")
    monkeypatch.setattr(doctor, "_CPUINFO", info)
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    cpu = doctor.examine(tmp_path).cpu
    assert cpu.model == "Test CPU"
    assert cpu.features["avx2"]
    assert cpu.features["amx_tile"]
    assert not cpu.features["avx512f"]


def test_a_system_that_does_not_tell_its_features_is_said_to(report, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_CPUINFO", tmp_path / "absent")
    report = doctor.examine(tmp_path)
    assert report.cpu.features is None
    assert ("cpu features", "not known on this system") in list(doctor.lines(report))


def test_no_usable_backend_is_a_problem(tmp_path, monkeypatch):
    broken = doctor.Backend("torch", False, "no torch")
    monkeypatch.setattr(doctor, "available_backends", lambda: (broken,))
    report = doctor.examine(tmp_path)
    assert report.problems == ("no kernel backend is usable: see the reasons above",)
    assert ("kernels: torch", "not usable (no torch)") in list(doctor.lines(report))


def test_the_backend_that_is_taken_by_itself_is_shown_and_not_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = dict(doctor.lines(doctor.examine(tmp_path)))
    assert names["kernels: auto"] in {"cpu", "torch"}
    assert f"kernels: {names['kernels: auto']}" in names
    assert not (tmp_path / "phloem").exists()


def test_a_missing_library_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "LIBRARIES", ("torch", "no-such-library"))
    report = doctor.examine(tmp_path)
    assert report.problems == ("no-such-library not installed: reinstall phloem",)
    assert ("no-such-library", "not installed") in list(doctor.lines(report))


def test_the_report_can_be_made_plain_data(report):
    assert dataclasses.asdict(report)["cpu"]["model"] == report.cpu.model
