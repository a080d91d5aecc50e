"""What the package promises as a package: it is light, and its README is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_it_loads_no_torch():
    code = "import sys, phloem.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_example_of_the_readme_runs(capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(example, {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("a (11,)")
    assert "type='stop'" in printed[-1]
