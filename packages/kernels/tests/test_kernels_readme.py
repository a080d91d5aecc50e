import re
from pathlib import Path


def test_the_example_of_the_readme_runs(capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    exec(compile(example, "README.md", "exec"), {})
    assert "[19, 8, 64]" in capsys.readouterr().out
