"""These tests need Triton's interpreter, which a process has from its start or not at all.

`test_triton_interpreter.py`, one folder up, runs them in a process of their own. By hand:
`TRITON_INTERPRET=1 pytest packages/kernels/tests/triton_interpreter`.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
