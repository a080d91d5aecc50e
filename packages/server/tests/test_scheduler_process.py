from __future__ import annotations

import json
import re
import threading
from collections import deque

import pytest

from phloem.grammar import Constraint
from phloem.grammar.registry import create_backend
from phloem.mem_pool import Retention
from phloem.server.config import ServerArgs
from phloem.server.messages import (
    Abort,
    Beat,
    ConstraintUse,
    Control,
    Forget,
    Generate,
    Heard,
    Load,
    Reply,
    TextOptions,
    Thinking,
)
from phloem.server.scheduler_process import SchedulerService
from phloem.server.wiring import build


class Box:
    """Both ends of a mailbox in one place; waiting at an empty one is an error."""

    def __init__(self):
        self.messages = deque()

    def send(self, message):
        self.messages.append(message)

    def take(self):
        while self.messages:
            yield self.messages.popleft()

    def wait(self, timeout=None):
        assert self.messages or timeout is not None, "it would sleep for ever"
        yield from self.take()


class Harness:
    def __init__(self, model, **options):
        self.parts = build(ServerArgs(model=model, **options))
        self.inbox, self.detokenizer, self.frontend = Box(), Box(), Box()
        self.service = SchedulerService(
            self.parts.loop, self.inbox, self.detokenizer, self.frontend, self.parts.grammars
        )

    def send(self, *messages):
        for message in messages:
            self.inbox.send(message)

    def run(self):
        """Turn while there is something to do; the batches of news that came of it."""
        while self.inbox.messages or not self.service.idle:
            self.service.turn()
        self.parts.scheduler.manager.check()
        return [batch.news for batch in self.detokenizer.take()]


@pytest.fixture
def script(byte_level_folder, tmp_path):
    for file in byte_level_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    responses = [{"prompt_ids": [5], "output_ids": [10, 11, 12]}]
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"tokenizer": str(tmp_path), "responses": responses}))
    return f"scripted:{file}"


@pytest.fixture(params=[False, True], ids=["normal", "overlap"])
def harness(script, request):
    return Harness(script, enable_overlap=request.param)


GREEDY = {"temperature": 0}


def test_a_step_is_one_batch_with_news_of_every_request(script):
    harness = Harness(script)
    harness.send(*(Generate(f"r{i}", [5], {**GREEDY, "max_new_tokens": 3}) for i in range(4)))
    batches = harness.run()
    assert [[news.rid for news in batch] for batch in batches[1:]] == [
        [f"r{i}" for i in range(4)]
    ] * (len(batches) - 1)
    tokens = {f"r{i}": [] for i in range(4)}
    for news in (news for batch in batches for news in batch):
        tokens[news.rid] += news.token_ids
    assert set(map(tuple, tokens.values())) == {(10, 11, 12)}


def test_only_the_first_news_has_the_options_for_the_text(harness):
    params = {**GREEDY, "stop": ["a", "b"]}
    harness.send(Generate("r", [5], params, skip_special_tokens=False, shown_ids=[3]))
    news = [n for batch in harness.run() for n in batch]
    assert news[0].options == TextOptions(["a", "b"], False, shown_ids=[3])
    assert [n.options for n in news[1:]] == [None] * (len(news) - 1)
    assert news[-1].finish.type == "stop"


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [([99999], {}, "token id 99999"), ([5], {"odd": 1}, "'odd'"), ([5], {"top_p": 7}, "top_p")],
)
def test_what_slips_past_the_front_end_is_refused_and_others_go_on(harness, prompt, params, says):
    harness.send(Generate("bad", prompt, params), Generate("good", [5], GREEDY))
    news = [n for batch in harness.run() for n in batch]
    (bad,) = (n for n in news if n.rid == "bad")
    assert (bad.finish.type, bad.finish.status_code) == ("error", 400)
    assert says in bad.finish.message
    assert bad.options is not None
    assert [t for n in news if n.rid == "good" for t in n.token_ids][:3] == [10, 11, 12]


def test_reasoning_alone_is_bound_without_a_grammar(harness):
    use = ConstraintUse("", thinking=Thinking([7, 8], 2))
    harness.send(Generate("r", [5], GREEDY, constraint=use))
    tokens = [t for batch in harness.run() for n in batch for t in n.token_ids]
    assert tokens[:4] == [10, 11, 7, 8]


def test_how_long_a_prompt_is_retained_reaches_the_scheduler(harness, monkeypatch):
    kept, add = [], harness.parts.scheduler.add

    def noting(*args, **options):
        kept.append(options["retention"])
        return add(*args, **options)

    monkeypatch.setattr(harness.parts.scheduler, "add", noting)
    harness.send(
        Generate("kept", [5], GREEDY, retain_seconds=60, retain_tokens=1),
        Generate("not", [5], GREEDY),
    )
    harness.run()
    assert kept == [Retention(60, 1), None]


def test_an_id_in_use_harms_only_the_second_request(harness):
    harness.send(Generate("r", [5], GREEDY), Generate("r", [5], GREEDY))
    ends = [n.finish for batch in harness.run() for n in batch if n.finish]
    assert sorted(end.type for end in ends) == ["error", "stop"]


def test_an_abort_that_arrives_with_its_request_ends_it_before_it_runs(harness):
    harness.send(Generate("r", [5], GREEDY), Abort(["r", "nobody"]))
    (news,) = (n for batch in harness.run() for n in batch)
    assert (news.finish.type, news.token_ids) == ("abort", [])
    assert news.options is not None


def test_controls_are_answered_between_steps_in_order(harness):
    harness.send(Generate("r", [5], GREEDY), Control(1, "resume"), Control(2, "state"))
    harness.service.turn()
    resumed, state = harness.frontend.take()
    assert resumed == Reply(1, {})
    assert (state.id, state.value["running"] + state.value["waiting"]) == (2, 1)
    harness.service.turn()
    harness.send(Control(3, "flush_cache"), Control(4, "odd"))
    harness.service.turn()
    busy, odd = harness.frontend.take()
    assert "use the cache" in busy.error
    assert "no action 'odd'" in odd.error
    harness.run()
    harness.send(Control(5, "flush_cache"), Control(6, "state"))
    harness.run()
    freed, state = harness.frontend.take()
    assert freed.value["freed"] > 0
    assert state.value["free"] == state.value["total"]
    assert state.value["used"] == state.value["cached"] == 0


def test_what_the_queue_has_no_room_for_is_refused_with_a_time_to_come_again(script):
    harness = Harness(script, max_queued_requests=1)
    harness.send(*(Generate(rid, [5], GREEDY) for rid in "abc"))
    ends = {n.rid: n.finish for batch in harness.run() for n in batch if n.finish}
    assert ends["a"].type == "stop"
    for rid in "bc":
        assert (ends[rid].type, ends[rid].status_code) == ("refused", 503)
        assert ends[rid].retry_after == 1


def test_an_idle_scheduler_sleeps_until_a_time_limit_and_no_longer(harness):
    harness.send(Control(1, "pause", {"mode": "in_place"}), Generate("r", [5], GREEDY, timeout=1))
    harness.service.turn()
    assert harness.parts.loop.idle
    slept = []

    def wait(timeout):
        slept.append(timeout)
        harness.parts.scheduler._clock = lambda: float("inf")
        return ()

    harness.inbox.wait = wait
    harness.service.turn()
    assert 0 < slept[0] <= 1
    ((news,),) = harness.run()
    assert (news.finish.type, news.finish.status_code) == ("abort", 408)


def test_a_flush_waits_for_those_who_use_the_cache(harness):
    harness.send(Generate("r", [5], GREEDY))
    harness.service.turn()
    harness.send(Control(1, "flush_cache", {"timeout": 1000}))
    harness.service.turn()
    assert not list(harness.frontend.take())
    harness.run()
    (freed,) = harness.frontend.take()
    assert freed.value["freed"] > 0


def test_a_pause_that_retracts_lets_a_waiting_flush_happen(harness):
    harness.send(Generate("r", [5], GREEDY))
    harness.service.turn()
    harness.send(
        Control(1, "flush_cache", {"timeout": 1000}), Control(2, "pause", {"mode": "retract"})
    )
    harness.run()
    pause, freed = harness.frontend.take()
    assert (pause.id, pause.error, freed.id) == (2, None, 1)
    assert harness.parts.scheduler.num_waiting == 1
    harness.send(Control(3, "set_weight_version", {"name": "two"}), Control(4, "state"))
    harness.send(Control(5, "resume"), Control(6, "pause", {"mode": "gently"}))
    assert [n.finish.type for batch in harness.run() for n in batch if n.finish] == ["stop"]
    *_, state, resumed, odd = harness.frontend.take()
    assert (state.value["paused"], state.value["weight_version"]) == ("retract", "two")
    assert resumed.error is None
    assert "mode 'gently' is unknown" in odd.error


class TestConstraints:
    PATTERN = "[0-9]{4}-[01][0-9]"

    @pytest.fixture(params=[False, True], ids=["normal", "overlap"])
    def harness(self, script, request):
        return Harness(script, enable_overlap=request.param, grammar_backend="fsm")

    def compiled(self, harness):
        vocabulary = harness.parts.grammars.prepare().result()
        constraint = Constraint.regex(self.PATTERN)
        data = create_backend("fsm", vocabulary).compile(constraint).serialize()
        return Load(constraint.key, "fsm", data)

    @pytest.fixture
    def gate(self, harness, monkeypatch):
        """Open before a constraint is loaded."""
        gate = threading.Event()
        load = harness.parts.grammars._load
        monkeypatch.setattr(
            harness.parts.grammars, "_load", lambda compiled: gate.wait() and load(compiled)
        )
        yield gate
        gate.set()

    def test_a_compiled_one_is_followed(self, harness):
        load = self.compiled(harness)
        harness.send(
            Generate("free", [5], {**GREEDY, "max_new_tokens": 3}),
            load,
            Generate("held", [5], GREEDY, constraint=ConstraintUse(load.key)),
        )
        tokens, ends = {"free": [], "held": []}, {}
        for news in (news for batch in harness.run() for news in batch):
            tokens[news.rid] += news.token_ids
            ends[news.rid] = news.finish
        assert tokens["free"] == [10, 11, 12]
        assert re.fullmatch(self.PATTERN, harness.parts.tokenizer.decode(tokens["held"]))
        assert ends["held"].type == "stop"

    def test_one_that_cannot_be_read_is_refused_and_others_go_on(self, harness):
        load = self.compiled(harness)
        harness.send(
            Load("key", "fsm", b"no grammar"),
            Generate("bad", [5], GREEDY, constraint=ConstraintUse("key")),
            load,
            Generate("good", [5], GREEDY, constraint=ConstraintUse(load.key)),
        )
        ends = {news.rid: news.finish for batch in harness.run() for news in batch}
        assert (ends["bad"].type, ends["bad"].status_code) == ("error", 400)
        assert ends["good"].type == "stop"

    def test_where_none_are_enforced_they_are_refused(self, script):
        harness = Harness(script, grammar_backend="none")
        use = ConstraintUse("key")
        harness.send(Load("key", "fsm", b""), Generate("r", [5], GREEDY, constraint=use))
        ((news,),) = harness.run()
        assert "does not enforce" in news.finish.message

    def test_others_go_on_while_one_is_loaded(self, harness, gate):
        load = self.compiled(harness)
        use = ConstraintUse(load.key)
        harness.send(
            load,
            *(Generate(rid, [5], GREEDY, constraint=use) for rid in ("first", "left", "second")),
            Generate("free", [5], {**GREEDY, "max_new_tokens": 3}),
            Abort(["left"]),
        )
        ends = {}
        while "free" not in ends:
            harness.service.turn()
            batches = harness.detokenizer.take()
            ends |= {n.rid: n.finish for batch in batches for n in batch.news if n.finish}
        assert {rid: end.type for rid, end in ends.items()} == {"left": "abort", "free": "length"}
        assert not harness.service.idle
        gate.set()
        news = [n for batch in harness.run() for n in batch]
        assert [n.rid for n in news if n.options] == ["first", "second"]
        assert {n.rid: n.finish.type for n in news if n.finish} == {
            "first": "stop",
            "second": "stop",
        }

    def test_one_that_is_forgotten_is_named_no_more(self, harness):
        load = self.compiled(harness)
        use = ConstraintUse(load.key)
        harness.send(load, Forget([load.key, "unknown"]))
        harness.send(Generate("r", [5], GREEDY, constraint=use))
        ((news,),) = harness.run()
        assert (news.finish.type, news.finish.status_code) == ("error", 400)
        harness.send(load, Generate("r", [5], GREEDY, constraint=use))
        assert harness.run()[-1][-1].finish.type == "stop"


class Watched:
    """A watchdog that notes what it is told."""

    patience = None

    def __init__(self):
        self.told = []

    def watch(self):
        self.told.append("watch")
        self.patience = 0.5

    def rest(self):
        self.told.append("rest")
        self.patience = None


def test_the_watchdog_watches_steps_and_rests_once_nothing_has_come_for_a_while(harness):
    dog = Watched()
    service = SchedulerService(
        harness.parts.loop, harness.inbox, harness.detokenizer, harness.frontend, watchdog=dog
    )
    harness.send(Generate("r", [5], GREEDY))
    service.turn()
    while not service.idle:
        service.turn()
    assert set(dog.told) == {"watch"}
    harness.send(Beat(1))
    service.turn()
    assert set(dog.told) == {"watch"}
    service.turn()
    assert dog.told[-1] == "rest"


def test_a_beat_is_passed_on_and_answered(harness):
    harness.send(Beat(7))
    harness.service.turn()
    assert list(harness.frontend.take()) == [Heard("scheduler", 7)]
    assert list(harness.detokenizer.take()) == [Beat(7)]
