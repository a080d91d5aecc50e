"""A child by itself; what it does here is to wait for its end."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from phloem.server.children import Child, ChildConfig, main_of, started_ahead
from phloem.server.config import ServerArgs
from phloem.server.ipc import private_endpoints

MODULE = "waiting_child"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts children that run the given code once they are one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    started = []
    with private_endpoints() as endpoints:

        def start(code, died=lambda sentence: None, log_format="text", ahead=None):
            (tmp_path / f"{MODULE}.py").write_text(
                "import os, signal, sys, threading\n"
                "from pathlib import Path\n"
                "from phloem.server.children import enter_child\n"
                f"def main():\n    config = enter_child('test')\n    {code}\n"
            )
            args, now = ServerArgs(page_size=2), time.monotonic()
            config = ChildConfig(args, "x", endpoints, "info", now, log_format)
            with ahead or nullcontext() as early:
                started.append(Child("test", MODULE, config, died, early))
            return started[-1], Path(endpoints.folder)

        yield start
        for child in started:
            child.end()
            child.join()


class Deaths(list):
    def __init__(self):
        self.heard = threading.Event()

    def __call__(self, sentence):
        self.append(sentence)
        self.heard.set()


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("sys.exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9, SIGKILL"),
        ("sys.exit(config.args.page_size)", "exit status 2"),
        ("os.kill(os.getpid(), signal.SIGINT); sys.exit(4)", "exit status 4"),
    ],
)
def test_its_death_is_told_with_the_cause(start, code, cause):
    deaths = Deaths()
    start(code, deaths)
    assert deaths.heard.wait(30)
    assert deaths == [f"the test process died ({cause})"]


def test_it_is_the_process_that_was_started_ahead_for_it(start):
    deaths = Deaths()
    child, _ = start("sys.exit(os.getpid() % 100)", deaths, ahead=started_ahead(MODULE))
    assert deaths.heard.wait(30)
    assert deaths == [f"the test process died (exit status {child.pid % 100})"]


def test_one_that_was_started_ahead_for_something_else_is_not_taken(start):
    deaths = Deaths()
    start("sys.exit(7)", deaths, ahead=started_ahead("json.tool"))
    assert deaths.heard.wait(30)
    assert deaths == ["the test process died (exit status 7)"]


def test_what_was_started_ahead_and_not_taken_ends_without_a_word(start, capfd):
    def there():
        return [p for p in psutil.Process().children() if MODULE in " ".join(p.cmdline())]

    deaths = Deaths()
    start("sys.exit(0)", deaths)  # makes the module
    assert deaths.heard.wait(30)
    with started_ahead(MODULE):
        # A process that has just been started has no command line to be known by for a moment.
        deadline = time.monotonic() + 30
        while not there() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert there()
    assert not there()
    assert capfd.readouterr().err == ""


def test_its_log_has_the_format_that_it_was_told_of(start, capfd):
    deaths = Deaths()
    log = "import logging; logging.getLogger('x').warning('said')"
    start(f"{log}; sys.exit(3)", deaths, log_format="json")
    assert deaths.heard.wait(30)
    line = json.loads(capfd.readouterr().err)
    assert (line["process"], line["logger"], line["message"]) == ("test", "x", "said")


def test_it_ends_when_its_input_does_and_nobody_is_told(start):
    deaths = Deaths()
    child, folder = start("threading.Event().wait()", deaths)
    child.end()
    child.join(30)
    assert deaths == []
    assert not child.running
    assert folder.exists()  # its parent removes it, after the last child that uses it


def test_it_removes_the_folder_of_a_parent_that_was_killed(start):
    child, folder = start("threading.Event().wait()")
    child._stdin.close()
    child.join(30)
    assert not child.running
    assert not folder.exists()


def test_one_that_does_not_end_is_killed(start):
    code = "os.kill(os.getpid(), signal.SIGSTOP)"
    child, _ = start(code)
    child.end()
    child.join(0.1)
    assert not child.running


def test_the_current_folder_does_not_hide_modules(tmp_path, monkeypatch):
    (tmp_path / "signal.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "fine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [*main_of("phloem.server.cli"), "--version"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
