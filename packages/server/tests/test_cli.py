from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field

import click
import pytest
from click.testing import CliRunner

from phloem.model_runner.sources import ModelFolder
from phloem.server.cli import main
from phloem.server.cli.options import dataclass_options

# The group.


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(argument):
    heavy = ("torch", "transformers", "huggingface_hub", "numpy", "tokenizers", "jinja2", "rich")
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print([m for m in {heavy} if m in sys.modules]))\n"
        f"sys.argv = ['phloem', '{argument}']\n"
        "from phloem.server.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "phloem" in done.stdout.lower()


@pytest.mark.parametrize("command", ["generate", "chat", "bench", "demo", "pull", "doctor"])
def test_every_command_has_help_that_needs_no_torch(command):
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('torch' in sys.modules or 'numpy' in sys.modules))\n"
        f"sys.argv = ['phloem', '{command}', '--help']\n"
        "from phloem.server.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def test_the_list_of_commands_is_in_the_help(phloem):
    out = phloem("--help").out
    assert all(name in out for name in main.list_commands(None))


def test_an_unknown_command_is_a_usage_error(phloem):
    assert phloem("nonsense").code == 2


# Options.


def test_a_dataclass_becomes_options_and_only_those_given_are_passed():
    @dataclass(frozen=True)
    class Options:
        name: str = field(default="a", metadata={"help": "the name", "choices": ("a", "b")})
        length: int | None = None
        share: float | None = None
        flag: bool = False
        maybe: bool | None = None

    @click.command()
    @dataclass_options(Options, "given")
    def command(given):
        click.echo(json.dumps(given))

    def run(*args):
        return CliRunner().invoke(command, args)

    assert json.loads(run().stdout) == {}
    given = run("--name", "b", "--length", "3", "--share", "0.5", "--flag", "--no-maybe").stdout
    assert json.loads(given) == {
        "name": "b",
        "length": 3,
        "share": 0.5,
        "flag": True,
        "maybe": False,
    }
    assert run("--name", "c").exit_code == 2
    assert "the name  [default: a]" in run("--help").stdout


def test_a_field_that_no_option_can_hold_is_refused():
    @dataclass(frozen=True)
    class Options:
        names: dict[str, str] | None = None

    with pytest.raises(TypeError, match="field names"):
        dataclass_options(Options, "given")


def test_engine_options_reach_the_engine(phloem):
    done = phloem("generate", "x", "--page-size", "16", "--disable-radix-cache")
    assert done.engine.options == {"page_size": 16, "disable_radix_cache": True}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--temperature", "7"], "temperature is 7.0: allowed is [0, 2]"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--stop", ""], "stop has ''"),
        (["--max-new-tokens", "-1"], "max_new_tokens is -1"),
        (["--max-new-tokens", "many"], "not a valid integer"),
        (["--schedule-policy", "odd"], "--schedule-policy"),
    ],
)
def test_a_bad_value_ends_with_2_and_its_sentence_before_an_engine_starts(phloem, args, says):
    done = phloem("generate", "x", *args)
    assert done.code == 2
    assert says in done.err
    assert done.engine is None


def test_options_that_the_engine_refuses_end_with_2():
    def refuse(**options):
        raise ValueError("page_size 3 is no power of two")

    done = CliRunner().invoke(main, ["generate", "x"], obj=refuse)
    assert (done.exit_code, "no power of two" in done.stderr) == (2, True)


def test_our_own_engine_refuses_bad_options_with_2():
    done = CliRunner().invoke(main, ["generate", "x", "--page-size", "3"])
    assert (done.exit_code, "no power of two" in done.stderr) == (2, True)


# pull and doctor.


def test_pulling_an_unknown_model_ends_with_1_and_the_known_names(phloem, tmp_path):
    done = phloem("pull", "no-such-model", "--cache-dir", str(tmp_path))
    assert (done.code, "smollm2" in done.err) == (1, True)


def test_pulling_a_model_that_is_here_prints_its_folder(phloem, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    done = phloem("pull", str(tmp_path))
    assert (done.code, done.out.strip()) == (0, str(tmp_path.resolve()))


def test_doctor_prints_a_table_or_json(phloem, tmp_path, monkeypatch):
    folder = ModelFolder(tmp_path, "smollm2", "a test")
    monkeypatch.setattr("phloem.server.doctor.resolve_model", lambda *a, **options: folder)
    table = phloem("doctor", "--cache-dir", str(tmp_path))
    assert (table.code, "kernels: torch" in table.out, "memory" in table.out) == (0, True, True)
    report = json.loads(phloem("doctor", "--json", "--cache-dir", str(tmp_path)).out)
    assert report["model"]["cache_dir"] == str(tmp_path)
    assert report["problems"] == []


def test_doctor_ends_with_1_if_no_engine_can_run(phloem, monkeypatch):
    monkeypatch.setattr("phloem.server.doctor.available_backends", tuple)
    monkeypatch.setattr("phloem.server.doctor.resolve_model", _absent)
    done = phloem("doctor")
    assert (done.code, "no kernel backend is usable" in done.err) == (1, True)
    assert "phloem pull" in done.out


def _absent(*args, **options):
    raise ValueError("not here: get it with `phloem pull smollm2`")
