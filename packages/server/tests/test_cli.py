from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field

import click
import pytest
from click.testing import CliRunner

from phloem.model_runner.sources import ModelFolder
from phloem.server.cli import main
from phloem.server.cli.options import dataclass_options


def meta(finish="stop", cached=2, **more):
    return {
        "finish_reason": finish and {"type": finish, **more},
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "cached_tokens": cached,
        "timings": {"ttft": 0.5, "decode": 0.1, "total": 0.6},
    }


class FakeEngine:
    """Answers `<prompt>!` in two pieces, and remembers what it was asked."""

    def __init__(self, answer=lambda given: [f"<{given}", ">!"], finish=None, **options):
        self.options = options
        self.asked = []
        self.closed = False
        self._answer = answer
        self._finish = finish or {"finish": "stop"}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def generate(self, prompts=None, sampling_params=None, *, input_ids=None, stream=False):
        return self._run(prompts if input_ids is None else input_ids, sampling_params, stream)

    def chat(self, messages, sampling_params=None, *, stream=False):
        return self._run([m["content"] for m in messages], sampling_params, stream)

    def _run(self, given, params, stream):
        self.asked.append((given, dict(params)))
        pieces = self._answer(given)
        if isinstance(pieces, Exception):
            raise pieces
        if not stream:
            return {
                "text": "".join(pieces),
                "output_ids": [1, 2],
                "meta_info": meta(**self._finish),
            }
        last = len(pieces) - 1
        return (
            {"text": p, "meta_info": meta(**self._finish) if i == last else meta(None)}
            for i, p in enumerate(pieces)
        )


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    engine: FakeEngine | None


@pytest.fixture
def phloem():
    def run(*args, stdin=None, **engine):
        made = []

        def factory(**options):
            made.append(FakeEngine(**engine, **options))
            return made[-1]

        result = CliRunner().invoke(main, args, input=stdin, obj=factory)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert all(engine.closed for engine in made)
        return Outcome(result.exit_code, result.stdout, result.stderr, made[0] if made else None)

    return run


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


@pytest.mark.parametrize("command", ["generate", "chat", "demo", "pull", "doctor"])
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
        names: tuple[str, ...] = ()

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


# generate.


def test_a_single_prompt_streams_and_shows_its_figures_apart(phloem):
    done = phloem("generate", "hi", "--temperature", "0", "--stop", "a", "--stop", "b")
    assert done.out == "<hi>!\n"
    assert "3 tokens, 20.0 tokens/s" in done.err
    assert "2 of 4 prompt tokens cached" in done.err
    assert done.engine.asked == [("hi", {"temperature": 0.0, "stop": ("a", "b")})]


def test_several_prompts_come_out_in_their_order(phloem, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("two\n\nthree\n")
    done = phloem("generate", "one", "--file", str(file))
    assert done.out == ">>> one\n<one>!\n\n>>> two\n<two>!\n\n>>> three\n<three>!\n\n"


def test_prompts_are_in_flight_together(phloem):
    """Each waits for the other: one after the other they would never end."""
    meeting = threading.Barrier(2, timeout=30)

    def answer(given):
        meeting.wait()
        return [given]

    assert phloem("generate", "a", "b", answer=answer).code == 0


def test_json_output_is_a_line_for_each_prompt(phloem):
    lines = phloem("generate", "a", "b", "--json").out.splitlines()
    assert [(r["prompt"], r["text"]) for r in map(json.loads, lines)] == [
        ("a", "<a>!"),
        ("b", "<b>!"),
    ]


def test_jsonl_takes_prompts_messages_and_ids_with_their_own_parameters(phloem, tmp_path):
    records = [
        {"id": 7, "prompt": "p", "sampling_params": {"top_k": 3}},
        {"messages": [{"role": "user", "content": "m"}]},
        {"input_ids": [1, 2]},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    done = phloem("generate", "--jsonl", str(source), "--output", str(target), "--seed", "1")
    assert (done.code, done.out) == (0, "")
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert [r["text"] for r in results] == ["<p>!", "<['m']>!", "<[1, 2]>!"]
    assert results[0]["id"] == 7
    assert results[0]["output_ids"] == [1, 2]
    assert results[1]["messages"] == records[1]["messages"]
    assert ("p", {"seed": 1, "top_k": 3}) in done.engine.asked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 of the JSONL: "),
        ("[]", "line 2 of the JSONL: it holds a list"),
        ("{}", "line 2 of the JSONL: it has no input"),
        ('{"prompt": "a", "input_ids": [1]}', "it has prompt and input_ids"),
        ('{"prompt": "a", "sampling_params": 1}', "sampling_params is a int"),
        ('{"prompt": "a", "sampling_params": {"top_k": 0}}', "top_k is 0"),
        ('{"prompt": "a", "sampling_params": {"x": 0}}', "unknown sampling parameter 'x'"),
    ],
)
def test_a_bad_line_is_named_before_an_engine_starts(phloem, tmp_path, line, says):
    source = tmp_path / "in.jsonl"
    source.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    done = phloem("generate", "--jsonl", str(source))
    assert (done.code, done.engine) == (2, None)
    assert says in done.err


def test_no_prompt_at_all_is_a_usage_error(phloem):
    done = phloem("generate")
    assert (done.code, "there is no prompt" in done.err) == (2, True)


def test_a_prompt_that_fails_harms_only_itself(phloem):
    def answer(given):
        return ValueError("too long") if given == "bad" else [given]

    done = phloem("generate", "good", "bad", "fine", "--json", answer=answer)
    results = [json.loads(line) for line in done.out.splitlines()]
    assert [r.get("text") for r in results] == ["good", None, "fine"]
    assert results[1]["error"] == "too long"
    assert (done.code, "1 of 3 prompts failed" in done.err) == (1, True)


def test_a_single_prompt_that_is_refused_ends_with_2(phloem):
    done = phloem("generate", "bad", answer=lambda given: ValueError("too long"))
    assert (done.code, "too long" in done.err) == (2, True)


def test_a_request_that_ends_with_an_error_is_a_failure(phloem):
    finish = {"finish": "error", "message": "NaN in the logits"}
    single = phloem("generate", "x", finish=finish)
    assert (single.code, "NaN in the logits" in single.err) == (1, True)
    several = phloem("generate", "x", "y", finish=finish)
    assert (several.code, several.out.count("[error: NaN in the logits]")) == (1, 2)


# chat.


def test_a_chat_keeps_its_history(phloem):
    done = phloem("chat", "--system", "S", stdin="a\nb\n")
    assert done.out == "<['S', 'a']>!\n<['S', 'a', \"<['S', 'a']>!\", 'b']>!\n"
    assert [given for given, _ in done.engine.asked][1][-1] == "b"
    assert "prompt tokens cached" in done.err


def test_reset_forgets_the_history_and_quit_ends(phloem):
    done = phloem("chat", "--system", "S", stdin="a\n/reset\nb\n/quit\nc\n")
    assert [given for given, _ in done.engine.asked] == [["S", "a"], ["S", "b"]]


def test_empty_lines_and_unknown_commands_ask_nothing(phloem):
    done = phloem("chat", stdin="\n  \n/help\n")
    assert (done.code, done.engine.asked) == (0, [])
    assert "/help is no command" in done.err


def test_a_question_that_is_refused_does_not_end_the_chat(phloem):
    def answer(given):
        return ValueError("the prompt is too long") if "bad" in given else [given[-1]]

    done = phloem("chat", stdin="bad\ngood\n", answer=answer)
    assert (done.code, done.out) == (0, "good\n")
    assert "too long" in done.err
    assert done.engine.asked[-1][0] == ["good"]


def test_an_interrupted_answer_leaves_the_conversation_without_it(phloem):
    def answer(given):
        if given[-1] == "long":
            return Interrupting()
        return [given[-1]]

    class Interrupting(list):
        def __len__(self):
            return 2

        def __iter__(self):
            yield "begin"
            raise KeyboardInterrupt

    done = phloem("chat", stdin="long\nnext\n", answer=answer)
    assert done.out == "beginnext\n"
    assert done.engine.asked[-1][0] == ["next"]


def test_an_answer_that_fails_is_not_kept(phloem):
    done = phloem("chat", stdin="a\nb\n", finish={"finish": "error", "message": "NaN"})
    assert "NaN" in done.err
    assert done.engine.asked[-1][0] == ["b"]


# demo.


def paris(given):
    return ["The capital of France ", "is Paris."] if len(given) == 2 else ["Its towers."]


def test_the_demo_asks_twice_and_ends_with_0(phloem):
    done = phloem("demo", "--once", answer=paris)
    assert (done.code, done.out) == (0, "The capital of France is Paris.\nIts towers.\n")
    assert "2 of its 4 tokens came from the prefix cache" in done.err
    assert done.engine.asked[1][0][:3] == [
        "You are a helpful assistant.",
        "What is the capital of France?",
        "The capital of France is Paris.",
    ]


def test_without_once_the_demo_goes_on_as_a_chat(phloem):
    done = phloem("demo", answer=paris, stdin="And?\n")
    assert (done.code, done.engine.asked[2][0][-1]) == (0, "And?")
    assert len(done.engine.asked[2][0]) == 6


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"answer": lambda given: ["Lyon."]}, "does not say Paris"),
        ({"answer": lambda given: ["Paris."] if len(given) == 2 else [" "]}, "no answer"),
        ({"answer": lambda given: RuntimeError("out of memory")}, "out of memory"),
        ({"answer": paris, "finish": {"finish": "error", "message": "NaN"}}, "NaN"),
    ],
)
def test_a_demo_that_goes_wrong_ends_with_1(phloem, engine, says):
    done = phloem("demo", "--once", **engine)
    assert (done.code, says in done.err) == (1, True)


def test_a_demo_without_a_cache_hit_ends_with_1(phloem, monkeypatch):
    monkeypatch.setitem(
        globals(), "meta", lambda *a, m=meta, **k: {**m(*a, **k), "cached_tokens": 0}
    )
    done = phloem("demo", "--once", answer=paris)
    assert (done.code, "nothing in the prefix cache" in done.err) == (1, True)


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


# With our own engine.


@pytest.fixture
def script(byte_level_folder, tmp_path):
    """A scripted model that answers everybody."""
    for file in byte_level_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    responses = [
        {"prompt": "Say", "output": " Příliš 🌳 STOP nothing"},
        {"messages": [{"role": "user", "content": "Hi"}], "output": "Hello!"},
    ]
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"tokenizer": str(tmp_path), "responses": responses}))
    return f"scripted:{file}"


def run_our_engine(*args, stdin=None):
    return CliRunner().invoke(main, args, input=stdin, catch_exceptions=False)


def test_our_own_engine_streams_and_stops(script):
    done = run_our_engine("generate", "Say", "--model", script, "--stop", "STOP")
    assert (done.exit_code, done.stdout) == (0, " Příliš 🌳 \n")
    several = run_our_engine("generate", "Say", "--json", "--model", script, "--stop", "STOP")
    result = json.loads(several.stdout)
    assert result["text"] == " Příliš 🌳 "
    assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": "STOP"}


def test_our_own_engine_chats(script):
    done = run_our_engine("chat", "--model", script, stdin="Hi\n")
    assert (done.exit_code, done.stdout) == (0, "Hello!\n")


def test_a_prompt_too_long_for_our_own_engine_ends_with_2(script):
    done = run_our_engine("generate", "x" * 50, "--model", script, "--context-length", "16")
    assert done.exit_code == 2
    assert "50" in done.stderr
