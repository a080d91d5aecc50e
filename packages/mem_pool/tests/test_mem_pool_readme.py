import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_of_the_readme_run_and_show_what_they_say(capsys):
    text = README.read_text(encoding="utf-8")
    manager, kv, tiers = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(manager, names)
    assert capsys.readouterr().out.startswith("96\nReport(free=65440,")
    shown = {}
    exec(kv, shown)
    assert capsys.readouterr().out == "544\n"
    k, keys = shown["k"], shown["keys"]
    assert ((keys - k).abs() <= k.abs().amax(-1, keepdim=True) / 253.9).all()
    assert shown["other"].gather(0, shown["slots"])[0].equal(keys)
    exec(tiers, names)
    assert capsys.readouterr().out == "0\n99\n"
