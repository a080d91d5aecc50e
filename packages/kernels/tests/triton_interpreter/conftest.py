"""These tests need Triton's interpreter, which a process has from its start or not at all.

`test_triton_interpreter.py`, one folder up, runs them in a process of their own. By hand:
`TRITON_INTERPRET=1 pytest packages/kernels/tests/triton_interpreter`.
"""

import os
from types import SimpleNamespace

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def interpreted_language():
    """Triton's language is the interpreter's from here on.

    By itself the interpreter exchanges the language's functions for its own at each call of one
    function by another, which takes most of the time of these tests.
    """
    from triton import language
    from triton.runtime import interpreter

    # It looks for the language among the globals of the function that is called.
    seen = {"tl": language, "core": language.core}
    interpreter._patch_lang(SimpleNamespace(__globals__=seen))
    with pytest.MonkeyPatch.context() as patch:
        done = SimpleNamespace(restore=lambda: None)
        patch.setattr(interpreter, "_patch_lang", lambda function: done)
        yield
