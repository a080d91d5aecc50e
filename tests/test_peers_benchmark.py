"""The benchmark against other servers: set-up, measuring, agreement of texts, ratios, tables."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from phloem.server.bench.client import Target
from phloem.server.bench.figures import Figures
from phloem.server.bench.workloads import TextMaker

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers import llama_cpp_peer, phloem_peer, report, transformers_peer, vllm_peer
from benchmarks.peers.__main__ import main
from benchmarks.peers.chart import chart
from benchmarks.peers.contestant import Contestant, Launch, Place
from benchmarks.peers.environments import SetupFailed, checked, stamped
from benchmarks.peers.load import Measured, Plan, measure
from benchmarks.peers.results import Entrant, Results, Session, compare, ratios
from benchmarks.peers.rounds import Rounds
from benchmarks.peers.server import PeakMemory, ServerFailed, running

STUB = r"""
import json, sys, zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, *wishes = sys.argv[1:]

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("stream") and "min_tokens" in wishes and "min_tokens" not in body:
            return self.send_error(400, "min_tokens is missing")
        word = f" {zlib.crc32(body['prompt'].encode())}"
        if "wrong" in wishes:
            word += "1"
        n = body["max_tokens"]
        texts = [{"text": word, "finish_reason": None} for _ in range(n - 1)]
        texts.append({"text": word, "finish_reason": "length"})
        usage = {"prompt_tokens": 7, "completion_tokens": n}
        if not body.get("stream"):
            return self.say("application/json", json.dumps({"choices": texts, "usage": usage}))
        events = [{"choices": [{"index": 0, **text}]} for text in texts]
        events.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self.say("text/event-stream", "".join(lines) + "data: [DONE]\n\n")

    def say(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass

ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
"""An OpenAI-compatible server that answers each prompt with words of its own."""

DIES = "import sys; sys.exit('there is no model')"


def stub(*wishes, script=STUB):
    return Launch((sys.executable, "-c", script, "{port}", *wishes))


def nothing(place, say):
    pass


def contestant(name, launch, *, precision="", set_up=nothing, ours=False):
    return Contestant(name, precision, set_up, lambda place, workload: launch, "", ours)


@pytest.fixture(scope="module")
def make():
    return TextMaker(lambda text: list(map(len, re.findall(r"\w+|[^\w\s]", text))), 0)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, tmp_path / "m.gguf", tmp_path / "hf", 2, 1)


def figures(rate=100.0, **more):
    plain = dict.fromkeys(Figures.__slots__)
    return Figures(
        **{
            **plain,
            "requests": 2,
            "failed": 0,
            "output_tokens_per_s": rate,
            "ttft_p50_ms": 1000 / rate,
            **more,
        }
    )


def results(ours=(), peers=()):
    """Of some `(name, precision, figures, texts)`, in one round of w2."""
    entrants = [
        (Entrant(name, precision, is_ours), measured, texts)
        for is_ours, of in ((True, ours), (False, peers))
        for name, precision, measured, texts in of
    ]
    found = Results(entrant for entrant, _, _ in entrants)
    for entrant, measured, texts in entrants:
        run = Measured("w2", measured, texts, 0.0)
        found.add(entrant.name, Session(0, 1.0, 10.0, 5.0, [run]))
    return found


def against(found, rivals="all", metric="output_tokens_per_s"):
    return ratios(found.standings(), found.entrants)["w2"]["phloem"][rivals][metric]


RIGHT = {f"prompt {i}": f"text {i}" for i in range(16)}
WRONG = dict.fromkeys(RIGHT, "nonsense")
EXACT = ("llama.cpp-f32", "fp32", figures(40), RIGHT)


def test_texts_agree_where_the_same_prompt_has_the_same_text():
    said = {"a": "1", "b": "other", "not asked of the reference": "3"}
    assert compare(said, {"a": "1", "b": "2", "never answered": "3"}) == (1, 3)


def test_we_are_compared_with_the_fastest_peer_and_with_the_fastest_exact_one():
    found = results(
        [("phloem", "", figures(120), RIGHT)],
        [EXACT, ("vllm", "fp32", figures(30), RIGHT), ("openvino", "q8_0", figures(80), RIGHT)],
    )
    assert against(found) == {"best": "openvino", "ratio": 1.5}
    assert against(found, "fp32") == {"best": "llama.cpp-f32", "ratio": 3.0}


def test_a_ratio_of_times_is_above_one_when_ours_is_the_shorter():
    found = results([("phloem", "", figures(120, ttft_p50_ms=5.0), RIGHT)], [EXACT])
    assert against(found, metric="ttft_p50_ms") == {"best": "llama.cpp-f32", "ratio": 5.0}


def test_another_configuration_of_ours_is_no_rival():
    found = results(
        [("phloem", "", figures(80), RIGHT), ("phloem-int8", "", figures(999), RIGHT)], [EXACT]
    )
    assert against(found)["best"] == "llama.cpp-f32"


def test_a_peer_whose_texts_are_wrong_is_never_the_best():
    one_right = {**WRONG, "prompt 3": "text 3"}
    two_right = {**one_right, "prompt 4": "text 4"}
    ours = [("phloem", "", figures(100), RIGHT)]
    found = results(ours, [EXACT, ("fast", "q4", figures(500), one_right)])
    assert not found.standings()["fast"].counts
    assert against(found)["best"] == "llama.cpp-f32"
    found = results(ours, [EXACT, ("fast", "q4", figures(500), two_right)])
    assert found.standings()["fast"].counts
    assert against(found)["best"] == "fast"


def test_a_peer_with_failed_requests_is_never_the_best():
    ours = [("phloem", "", figures(100), RIGHT)]
    found = results(ours, [EXACT, ("fast", "q8", figures(500, failed=1), RIGHT)])
    assert against(found)["best"] == "llama.cpp-f32"


def test_without_a_reference_everybody_counts():
    found = results([("phloem", "", figures(100), RIGHT)], [("fast", "q4", figures(500), WRONG)])
    assert found.reference is None
    assert found.standings()["fast"].agreement == {}
    assert against(found) == {"best": "fast", "ratio": 0.2}


def test_without_peers_there_is_nothing_to_compare():
    found = results([("phloem", "", figures(100), RIGHT)])
    assert ratios(found.standings(), found.entrants) == {"w2": {"phloem": {"all": {}, "fp32": {}}}}


def test_rounds_make_medians_and_agreement_counts_those_that_the_reference_finished():
    found = Results([Entrant("vllm", "fp32", False), Entrant("openvino", "q8_0", False)])
    for number, rate in enumerate((10.0, 70.0, 20.0)):
        run = Measured("w2", figures(rate), RIGHT, 0.1 * number)
        found.add("openvino", Session(number, 1.0 + number, 10.0 - number, 5.0, [run]))
        if number < 2:
            texts = RIGHT if number else WRONG
            found.add("vllm", Session(number, 9.0, runs=[Measured("w2", figures(), texts, 0.0)]))
    standing = found.standings()["openvino"]
    assert standing.figures["w2"].output_tokens_per_s == 20
    assert standing.agreement["w2"] == (16, 32)
    assert standing.startup_s == 2
    assert standing.peak_rss_mib == 10
    assert standing.others_cores["w2"] == pytest.approx(0.2)


def test_everything_but_the_texts_is_json():
    found = results([("phloem", "", figures(100), RIGHT)], [EXACT])
    told = json.loads(json.dumps(found.as_dict()))
    assert told["contestants"]["phloem"]["median"]["w2"]["output_tokens_per_s"] == 100
    assert told["contestants"]["phloem"]["agreement"]["w2"] == {"equal": 16, "of": 16}
    assert told["contestants"]["llama.cpp-f32"]["sessions"][0]["runs"][0]["workload"] == "w2"
    assert "text 3" not in json.dumps(told)


def test_the_table_puts_in_brackets_what_does_not_count_and_tells_who_is_absent():
    found = results(
        [("phloem", "", figures(100), RIGHT)], [EXACT, ("fast", "q4", figures(500), WRONG)]
    )
    found.absent["vllm"] = "pip failed"
    text = "\n".join(report.lines(found))
    assert re.search(r"^\(fast\) +500\.0 .* 0/16 +0$", text, re.M)
    assert "phloem against the best of all: output tokens/s 2.50x (llama.cpp-f32)" in text
    assert "fast does not count: 0 of 16 texts of w2 are right" in text
    assert "vllm is absent: pip failed" in text


def test_bars_are_as_long_as_the_rates_and_grey_where_texts_are_wrong():
    found = results(
        [("phloem", "", figures(100), RIGHT)], [EXACT, ("a<b", "q4", figures(200), WRONG)]
    )
    document = ElementTree.fromstring(chart("a & b", found.standings(), found.entrants))
    bars = document.findall("{*}g/{*}rect")
    ours, exact, wrong = (float(bar.get("width")) for bar in bars)
    assert (ours / wrong, exact / wrong) == pytest.approx((0.5, 0.2))
    assert len({bar.get("fill") for bar in bars}) == 3
    assert "a<b" in {text.text for text in document.iter("{http://www.w3.org/2000/svg}text")}


def test_a_plan_gives_every_server_the_same_and_every_round_something_new(make):
    plan = Plan(make, requests=2)
    assert plan.workload("w2", 0) == Plan(make, requests=2).workload("w2", 0)
    assert plan.workload("w2", 0) != plan.workload("w2", 1)
    assert len(plan.workload("w3", 0).conversations) == 2
    assert len(Plan(make).workload("w3", 0).conversations) == 64


class Alone:
    def stop(self):
        return 0.25


def load(server, make, workloads, **target):
    plan, runs = Plan(make, requests=2), []
    built = [plan.workload(name, 0) for name in workloads]
    asked = Target(f"{server.url}/v1", "m", **target)
    asyncio.run(measure(asked, plan, built, Alone, runs.append))
    return runs


def test_a_running_server_is_measured_and_its_texts_are_kept(make, tmp_path):
    with running(stub(), tmp_path / "log", 30) as server, PeakMemory(server.pid) as peak:
        cold, warm, turns = load(server, make, ("w3", "w4"))
        assert server.startup_s > 0
        assert server.pss_mib() is None or 1 < server.pss_mib() < 500
    assert peak.rss_mib > 1
    assert (cold.name, warm.name, turns.name) == ("w3", "w3warm", "w4")
    assert cold.figures.output_tokens == 2 * 32
    assert cold.texts == warm.texts
    assert len(cold.texts) == 2
    assert len(turns.texts) == 8
    assert cold.others_cores == 0.25
    assert cold.figures.failed == 0


def test_a_server_that_needs_min_tokens_is_asked_so(make, tmp_path):
    with running(stub("min_tokens"), tmp_path / "log", 30) as server:
        (run,) = load(server, make, ("w2",), min_tokens=True)
        assert run.figures.failed == 0
        with pytest.raises(RuntimeError, match="min_tokens is missing"):
            load(server, make, ("w2",))


def test_a_server_has_ended_afterwards(tmp_path):
    with running(stub(), tmp_path / "log", 30) as server:
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)


def test_of_a_server_that_ends_its_last_words_are_told(tmp_path):
    with (
        pytest.raises(ServerFailed, match=r"(?s)ended with status 1.*there is no model"),
        running(stub(script=DIES), tmp_path / "log", 30),
    ):
        pass


def test_a_server_that_does_not_exist_is_told(tmp_path):
    with (
        pytest.raises(ServerFailed, match="cannot be run"),
        running(Launch((str(tmp_path / "none"),)), tmp_path / "log", 30),
    ):
        pass


def test_contestants_take_turns_and_those_that_fail_are_left_out(make, place):
    def no_compiler(place, say):
        raise SetupFailed("there is no compiler")

    said = []
    rounds = Rounds(
        [
            contestant("phloem", stub(), ours=True),
            contestant("vllm", stub("min_tokens"), precision="fp32"),
            contestant("forgetful", replace(stub("min_tokens"), min_tokens=True)),
            contestant("liar", stub("wrong")),
            contestant("llama.cpp-f32", stub(), set_up=no_compiler),
            contestant("openvino", stub(script=DIES)),
        ],
        place,
        Plan(make, requests=2),
        ("w1", "w2"),
        said.append,
        start_timeout=30,
    )
    rounds.set_up()
    for number in range(2):
        rounds.play(number)
    started = re.findall(r"round (\d), (\S+): starting", "\n".join(said))
    assert [name for number, name in started if number == "1"] == [
        *("phloem", "vllm", "forgetful", "liar", "openvino")
    ]
    assert [name for number, name in started if number == "2"] == ["liar", "forgetful", "phloem"]
    found = rounds.results
    assert found.absent["llama.cpp-f32"] == "there is no compiler"
    assert "there is no model" in found.absent["openvino"]
    assert "min_tokens is missing" in found.absent["vllm"]
    standing = found.standings()["phloem"]
    assert list(standing.figures) == ["w1", "w2"]
    assert standing.figures["w2"].output_tokens == 2 * 64


def test_texts_of_servers_are_compared_with_those_of_the_exact_one(make, place):
    rounds = Rounds(
        [
            contestant("phloem", stub(), ours=True),
            contestant("llama.cpp-f32", stub(), precision="fp32"),
            contestant("liar", stub("wrong")),
        ],
        place,
        Plan(make, requests=2),
        ("w2",),
        lambda line: None,
        start_timeout=30,
    )
    rounds.play(0)
    standings = rounds.results.standings()
    assert rounds.results.reference == "llama.cpp-f32"
    assert standings["phloem"].agreement == {"w2": (2, 2)}
    assert standings["liar"].agreement == {"w2": (0, 2)}
    assert [name for name, standing in standings.items() if not standing.counts] == ["liar"]


def test_workloads_that_want_the_same_server_share_it(place):
    llama = llama_cpp_peer.contestants()[0]
    (one, first), (other, second) = llama.launches(place, ("w1", "w2", "w3", "w4"))
    assert (first, second) == (["w1", "w4"], ["w2", "w3"])
    assert set(one.command) ^ set(other.command) == {"-kvu", "-no-kvu"}


def test_a_peer_that_runs_one_request_at_a_time_is_measured_on_those_alone(place):
    (peer,) = transformers_peer.contestants()
    assert [workloads for _, workloads in peer.launches(place, ("w1", "w2", "w4"))] == [["w1"]]
    assert not any(map(peer.runs, ("w2", "w3", "w4", "w5")))


def test_commands_name_the_port_and_the_threads(place):
    peers = (llama_cpp_peer, vllm_peer, transformers_peer)
    for peer in itertools.chain.from_iterable(one.contestants() for one in peers):
        launch = peer.launch(place._replace(threads=3), "w1")
        command = launch.at(4711)
        assert command[command.index("--port") + 1] == "4711"
        if peer.name == "vllm":
            assert launch.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-2"
        else:
            flag = "--threads" if peer.name == "transformers" else "-t"
            assert command[command.index(flag) + 1] == "3"


def test_our_exact_configuration_is_known_by_its_flag(place):
    default, exact = phloem_peer.contestants()
    more = phloem_peer.contestant("more", "--page-size 16 --served-model-name 'a b'")
    assert (default.precision, exact.precision, more.precision) == ("", "fp32", "")
    assert phloem_peer.contestant("too", "--page-size 16 --quantization=none").precision == "fp32"
    assert more.launch(place, "w1").command[-4:] == (
        *("--page-size", "16", "--served-model-name", "a b"),
    )


def test_a_stamped_folder_is_made_once_for_what_is_wanted(tmp_path):
    made = []
    for wanted in (("a", "b"), ("a", "b"), ("a", "c"), ("a", "b")):
        stamped(tmp_path / "folder", wanted, lambda wanted=wanted: made.append(wanted))
    assert made == [("a", "b"), ("a", "c"), ("a", "b")]


def test_a_folder_whose_making_broke_off_is_made_again(tmp_path):
    def broken():
        raise SetupFailed("no space")

    made = []
    stamped(tmp_path, ("old",), lambda: None)
    with pytest.raises(SetupFailed):
        stamped(tmp_path, ("new",), broken)
    stamped(tmp_path, ("old",), lambda: made.append("old"))
    assert made == ["old"]


def test_a_failed_command_is_told_with_the_end_of_its_output(tmp_path):
    code = "import sys; print(*range(100), sep='\\n'); sys.exit(3)"
    with pytest.raises(SetupFailed, match=r"(?s)failed \(3\).*log.*98\n99$") as failed:
        checked((sys.executable, "-c", code), tmp_path / "log")
    assert "\n50\n" not in str(failed.value)


def test_a_command_that_is_not_installed_is_told(tmp_path):
    with pytest.raises(SetupFailed, match="no-such-compiler cannot be run"):
        checked(("no-such-compiler",), tmp_path / "log")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--peers", "phloem,nobody"), "'nobody' is unknown: use phloem, phloem-fp32, llama"),
        (("--workloads", "w9"), "'w9' is unknown"),
        (("--phloem", "--quantization int8"), "is no new name with flags"),
        (("--phloem", "vllm=--dtype float32"), "is no new name with flags"),
        (("--rounds", "0"), "0 is below 1"),
    ],
)
def test_options_that_make_no_sense_are_told(options, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks.peers", *options])
    with pytest.raises(SystemExit):
        main()
    assert told in capsys.readouterr().err
