import re
from pathlib import Path


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    said = [line.split("# ", 1)[1] for line in example.splitlines() if "print(" in line]
    assert len(printed) == len(said)
    assert all(note.startswith(line) for line, note in zip(printed, said)), printed
