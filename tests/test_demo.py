"""`phloem demo` as its users see it: a process that serves, asks, and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import psutil
import pytest

from phloem.server.demo import QUESTIONS

PHLOEM = [sys.executable, "-c", "from phloem.server.cli import main; main()"]
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


def user(text):
    return {"role": "user", "content": text}


def script(folder, answer):
    """A model that answers the questions of the demo, and nothing else."""
    first = [SYSTEM, user(QUESTIONS[0])]
    second = [*first, {"role": "assistant", "content": answer}, user(QUESTIONS[1])]
    responses = [
        {"messages": first, "output": answer},
        {"messages": second, "output": "Its towers."},
    ]
    file = folder / "script.json"
    file.write_text(json.dumps({"responses": responses}))
    return f"scripted:{file}"


@contextmanager
def demo(*options):
    command = [*PHLOEM, "demo", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process):
    """Its exit status and what it wrote."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_once_asks_twice_and_ends(smollm2, tmp_path):
    with demo("--once", "--model", script(tmp_path, "Paris.")) as process:
        code, out, err = ended(process)
    assert (code, out) == (0, "Paris.\nIts towers.\n"), err
    assert "tokens came from the prefix cache" in err
    assert "first token after" in err


def test_a_wrong_answer_ends_with_1(smollm2, tmp_path):
    with demo("--model", script(tmp_path, "Lyon."), "--port", "0") as process:
        code, _, err = ended(process)
    assert (code, "does not say Paris" in err) == (1, True)


def test_it_goes_on_serving_until_interrupted(smollm2, tmp_path):
    with demo("--model", script(tmp_path, "Paris."), "--port", "0") as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if "phloem chat --base-url" in line:
                break
        assert "curl " in "".join(said)
        url = said[-1].split()[-1]
        body = {"messages": [SYSTEM, user(QUESTIONS[0])], "temperature": 0}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).json()
        assert answer["choices"][0]["message"]["content"] == "Paris."
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 0
    assert not psutil.wait_procs(children, timeout=10)[1]


@pytest.mark.slow
def test_the_default_model_knows_paris(smollm2):
    with demo("--once") as process:
        code, out, err = ended(process)
    assert (code, "Paris" in out) == (0, True), err
