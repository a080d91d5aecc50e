"""The snippets of the READMEs run, and print what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def snippet(readme):
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_the_readme_says_paris(smollm2, capsys):
    exec(snippet(ROOT / "README.md"), {})
    assert "Paris" in capsys.readouterr().out


def test_the_server_readme_runs(smollm2, capsys):
    exec(snippet(ROOT / "packages/server/README.md"), {})
    assert "Paris" in capsys.readouterr().out


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
