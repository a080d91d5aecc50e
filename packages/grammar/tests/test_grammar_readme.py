import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_of_the_readme_run_and_show_what_they_say(capsys):
    text = README.read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    # Those of the compile service start processes, and are for its own tests.
    examples = [example for example in examples if "CompileService" not in example]
    for example in examples:
        exec(example, {})
        shown = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == shown
    assert len(examples) >= 3
