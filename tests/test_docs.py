"""The snippets of the READMEs run, and print what they say."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

from phloem.server import ServerArgs
from phloem.server.background import running_server

ROOT = Path(__file__).parents[1]


def snippets(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def server(smollm2):
    """The server that the README starts, on a free port."""
    # A constraint of the page needs a library that a busy machine loads slowly.
    args = ServerArgs(model="smollm2", grammar_compile_timeout=300.0)
    with running_server(args) as running:
        yield running


def test_the_readme_asks_by_curl(server):
    (command,) = snippets(ROOT / "README.md", "bash")
    command = command.replace("http://127.0.0.1:30000", server.url)
    answer = json.loads(subprocess.run(["bash", "-c", command], capture_output=True).stdout)
    assert "Shakespeare" in answer["choices"][0]["message"]["content"]


def test_the_readme_asks_by_the_openai_client(server, capsys):
    code, _, _ = snippets(ROOT / "README.md")
    exec(code.replace("http://127.0.0.1:30000", server.url), {})
    assert "Shakespeare" in capsys.readouterr().out


def test_the_readme_asks_for_responses_embeddings_and_messages(server, capsys):
    _, code, _ = snippets(ROOT / "README.md")
    exec(code.replace("http://127.0.0.1:30000", server.url), {})
    out = capsys.readouterr().out
    assert "Paris" in out
    assert "\n2 576\n" in out
    assert "Rome" in out


def test_the_readme_asks_the_engine(smollm2, capsys):
    _, _, code = snippets(ROOT / "README.md")
    exec(code, {})
    assert "Shakespeare" in capsys.readouterr().out


def test_the_server_readme_runs(smollm2, capsys):
    (code,) = snippets(ROOT / "packages/server/README.md")
    exec(code, {})
    assert "Paris" in capsys.readouterr().out


def test_the_page_on_structured_output_runs(server, capsys):
    names = {}
    for code in snippets(ROOT / "docs/structured-output.md"):
        exec(code.replace("http://127.0.0.1:30000", server.url), names)
    person, yes, date, total, month, call = capsys.readouterr().out.splitlines()
    assert set(ast.literal_eval(person)) == {"name", "age", "tags"}
    assert yes in ("yes", "no")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
    assert re.fullmatch(r"\d+ \+ \d+ = \d+", total)
    assert month == "January"
    assert call.startswith("get_weather {'city': ")


def test_the_page_on_clients_runs(server, capsys):
    (code,) = snippets(ROOT / "docs/clients.md")
    exec(code.replace("http://127.0.0.1:30000", server.url), {})
    out = capsys.readouterr().out
    assert "Paris" in out
    assert "[length, " in out
    assert out.endswith("\n400 temperature\n")


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_architecture_page_names_files_that_exist():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        package, _, rest = path.partition("/")
        inside = ROOT / "packages" / package
        assert (inside / "src/phloem" / package / rest).is_file() or (inside / rest).is_file(), path
