import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_of_the_readme_print_what_they_say(capsys):
    names = {}
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        said = [line.split("# ", 1)[1] for line in example.splitlines() if "print(" in line]
        # One line may print several times; then its note names them all.
        if len(printed) != len(said):
            assert all(any(line in note for note in said) for line in printed), printed
        else:
            for line, note in zip(printed, said):
                assert note.startswith(line) or line.startswith(note), (line, note)
    assert len(examples) >= 5
