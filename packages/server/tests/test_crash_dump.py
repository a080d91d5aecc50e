"""What crash dumps have, how many there are, and that trouble in writing them harms nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys

import pytest

from phloem.scheduler import SamplingParams
from phloem.server.compiling import NoCompiler
from phloem.server.crash_dump import KEPT_FILES, CrashDumps, prepare_folder
from phloem.server.frontend import GenerationRequest
from phloem.server.http_config import HttpArgs, shown_options
from phloem.server.in_flight import Flight
from phloem.server.messages import Finish, Limits, TextBatch, TextNews
from phloem.server.tokenizer_manager import TokenizerManager

PARTS = ("phloem-crash-1-1.part", "phloem-crash-2-1.part", "mine.part")
PARAMS = SamplingParams(max_new_tokens=9, stop=("secret",), logit_bias={7: 1.0})


def news(text, finish=None, rid="r"):
    return TextNews(rid, text, [1], finish, 2, 1, 0)


@pytest.fixture
def flight():
    made = Flight(GenerationRequest("r", [41, 42], PARAMS, tenant="mine"), texts=[])
    made.take(news("secret"))
    return made


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def report(folder, *reports, texts=False, clock=None):
    """Report in one server's life; the dumps that came of it, the oldest first."""

    async def run():
        with CrashDumps(folder, texts, {"version": "1"}, clock or Clock()) as dumps:
            for each in reports:
                dumps.report(*each)
                await dumps.written()

    asyncio.run(run())
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*"))]


def test_a_dump_has_lengths_times_and_parameters_but_no_texts(tmp_path, flight):
    logging.getLogger("x").error("before")
    (dump,) = report(tmp_path, ("it died", [flight], True))
    (shown,) = dump["requests"]
    assert (dump["reason"], dump["version"]) == ("it died", "1")
    assert (shown["rid"], shown["prompt_tokens"], shown["completion_tokens"]) == ("r", 2, 1)
    assert shown["sampling_params"] == {
        "max_new_tokens": 9,
        "stop": "1 redacted",
        "logit_bias": "1 redacted",
    }
    assert not {"prompt_ids", "output"} & set(shown)
    assert "secret" not in json.dumps(dump)


def test_with_texts_it_has_prompt_and_output(tmp_path, flight):
    (dump,) = report(tmp_path, ("it died", [flight], True), texts=True)
    (shown,) = dump["requests"]
    assert (shown["prompt_ids"], shown["output"]) == ([41, 42], "secret")
    assert shown["sampling_params"]["stop"] == ["secret"]


def test_it_has_the_last_lines_of_the_log_without_traces_and_fields(tmp_path):
    async def run():
        with CrashDumps(tmp_path, False, {}) as dumps:
            logger = logging.getLogger("phloem.some")
            try:
                raise ValueError("secret")
            except ValueError:
                logger.exception("a line", extra={"fields": {"request": "secret"}})
            for index in range(200):
                logger.error("line %d", index)
            logger.error("a last line")
            dumps.report("it died", [], True)
            await dumps.written()

    asyncio.run(run())
    (file,) = tmp_path.iterdir()
    lines = json.loads(file.read_text())["log"]
    assert len(lines) == 100
    assert lines[-1].endswith("ERROR phloem.some: a last line")
    assert "secret" not in file.read_text()


def test_nobody_else_may_read_it(tmp_path):
    report(tmp_path, ("it died", [], True))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_there_are_few_and_the_oldest_go(tmp_path):
    other = tmp_path / "phloem.log"
    other.write_text("{}")
    dumps = report(tmp_path, *((f"{i}", [], True) for i in range(KEPT_FILES + 3)))
    assert [dump.get("reason") for dump in dumps] == [
        *(f"{i}" for i in range(3, KEPT_FILES + 3)),
        None,
    ]


def test_failures_that_the_engine_survives_are_dumped_once_a_minute(tmp_path):
    clock = Clock()

    def at(seconds, *reports):
        clock.now = seconds
        return [dump["reason"] for dump in report(tmp_path, *reports, clock=clock)]

    assert at(1, ("a", [], False), ("b", [], False), ("died", [], True)) == ["a", "died"]


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_folder_that_is_none_is_one_line(tmp_path, flight, caplog, name):
    (tmp_path / "file").write_text("")
    folder = tmp_path / name
    report(folder, ("it died", [flight], True))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"no crash dump could be written to {folder}: ")
    assert record.exc_info is None


def test_a_full_disk_is_one_line_and_leaves_no_half_a_file(tmp_path):
    """A limit on the size of files stands for the disk: a write fails after a few bytes."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"""
import sys
sys.path[:] = {sys.path!r}
import asyncio, logging, resource
from pathlib import Path
from phloem.server.crash_dump import CrashDumps
logging.basicConfig(format="%(message)s")

async def run():
    with CrashDumps(Path({str(tmp_path)!r}), False, {{"options": "x" * 100_000}}) as dumps:
        dumps.report("it died", [], True)
        await dumps.written()

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
asyncio.run(run())
""",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"no crash dump could be written to {tmp_path}: [Errno 27] ")
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_written_and_no_text_is_kept(flight):
    async def run():
        with CrashDumps(None, True, {}) as dumps:
            dumps.report("it died", [flight], True)
            await dumps.written()
            return dumps.texts

    assert asyncio.run(run()) is False


class TestReports:
    @pytest.fixture
    def heard(self):
        return []

    @pytest.fixture
    def manager(self, byte_level, heard):
        def hear(reason, flights, dead):
            heard.append((reason, [flight.request.rid for flight in flights], dead))

        class Nowhere:
            def send(self, message):
                pass

        limits = Limits(100, 100, 300, 1000)
        made = TokenizerManager(byte_level, limits, NoCompiler(), Nowhere(), hear)
        for rid in ("r", "s"):
            made.start(GenerationRequest(rid, [1], SamplingParams()))
        return made

    def test_a_process_that_dies_is_told_with_what_is_in_flight(self, manager, heard):
        manager.crash("it died")
        assert heard == [("it died", ["r", "s"], True)]
        assert manager.running == 0

    def test_a_step_that_fails_is_told_with_those_that_it_fails(self, manager, heard):
        failed = Finish("error", message="the model step failed", status_code=500)
        manager.take(TextBatch([news("", failed), news("", failed, "s")]))
        assert heard == [
            ("the model step failed", ["r", "s"], False),
            ("the model step failed", ["s"], False),
        ]

    @pytest.mark.parametrize("status", [None, 400, 503])
    def test_other_ends_are_not_told(self, manager, heard, status):
        ends = "stop" if status is None else "error"
        manager.take(TextBatch([news("", Finish(ends, status_code=status))]))
        assert heard == []


def test_secrets_are_not_among_the_options_that_are_shown():
    options = HttpArgs(api_key=("very-secret-key",), admin_api_key="as-secret-a-key")
    shown = shown_options(options)
    assert shown["health_timeout"] == 10.0
    assert "secret" not in json.dumps(shown)


def test_a_folder_is_made_and_what_a_killed_writer_left_is_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    prepare_folder(folder)
    old, new, other = (folder / name for name in PARTS)
    for file in (old, new, other):
        file.touch()
    for file in (old, other):
        os.utime(file, (1, 1))
    prepare_folder(folder)
    assert sorted(folder.iterdir()) == sorted((new, other))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"health_timeout": 0.0}, "health_timeout 0 is no time"),
        ({"watchdog_timeout": -1.0}, "watchdog_timeout -1 is no time"),
        ({"watchdog_timeout": 0.0, "watchdog_action": "exit"}, "so that it never happens"),
        ({"watchdog_action": "bark"}, "use one of log, exit"),
        ({"crash_dump_text": True}, "without a crash_dump_dir"),
        ({"write_timeout": 0.0}, "write_timeout 0 is no time"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        HttpArgs(**options)
