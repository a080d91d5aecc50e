import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from phloem.radix_cache.analysis.chart import Chart, Line, chart_of, svg, ticks, tokens_label
from phloem.radix_cache.analysis.cli import main
from phloem.radix_cache.analysis.stats import PrefixStats
from phloem.radix_cache.analysis.text import render

RULES = " ".join(f"Rule {n}: be kind to number {n * n}." for n in range(60))


@pytest.fixture
def log(tmp_path):
    """Chats that begin with a counter, plain prompts, and one line that is broken."""
    path = tmp_path / "requests.jsonl"
    lines = []
    for n in range(40):
        system = {"role": "system", "content": f"Ticket {1000 + n}. {RULES}"}
        lines.append({"messages": [system, {"role": "user", "content": f"Question {n}?"}]})
        lines.append({"text": f"{RULES} Say {n}."})
    text = "\n".join([*map(json.dumps, lines), "{broken"])
    path.write_text(text, encoding="utf-8")
    return path


def test_the_report_is_readable(log, capsys):
    assert main(["analyze", str(log), "--policies", "lru,fifo", "--sizes", "256,1k,64k"]) == 0
    out, err = capsys.readouterr()
    assert "80 requests, about" in out
    assert "No tokenizer was given: texts are compared by bytes" in out
    assert "lru      fifo" in out
    assert "   64 Ki" in out
    assert "tokens saved" in out
    assert "1. counter, about 4 bytes at 18" in out
    assert "Ticket [1000]. Rule 0" in out
    assert "1 line skipped:\n  line 81: it is no JSON" in err
    assert max(map(len, out.splitlines())) < 140


def test_the_report_is_json(log, capsys):
    assert main(["analyze", str(log), "--json", "--page-size", "8", "--sizes", "1k"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["unit"], report["page_size"], report["requests"]) == ("bytes", 32, 80)
    assert [curve["policy"] for curve in report["curves"]] == ["lru", "lfu", "slru"]
    assert report["curves"][0]["points"][0]["size"] == 4096
    assert report["rate"] == report["reusable"] / report["prompt"]
    assert report["pollution"]["found"][0]["kind"] == "counter"
    assert report["pollution"]["moved_rate"] > 0.9
    assert report["skipped"]["count"] == 1
    assert report["skipped"]["first"][0]["line"] == 81


def test_token_ids_are_counted_as_they_are(tmp_path, capsys):
    log = tmp_path / "ids.jsonl"
    ids = [{"input_ids": [7] * 100, "output_ids": [8] * 20, "model": m} for m in "aab"]
    log.write_text("\n".join(map(json.dumps, ids)))
    assert main(["analyze", str(log), "--page-size", "1", "--sizes", "64,256"]) == 0
    out = capsys.readouterr().out
    assert "3 requests, 300 tokens of prompts, 60 tokens of outputs, 2 namespaces" in out
    assert "finds 99 tokens: 33.0% of prompts, in 1 request." in out
    assert "It would hold 240 tokens, outputs included" in out
    assert "namespace (('model', 'a'),)" in out


def test_a_bounded_memory_is_said(log, capsys):
    arguments = ["--sizes", "512,1m", "--remember", "512", "--sample", "1k", "--policies", "lru"]
    assert main(["analyze", str(log), *arguments]) == 0
    out = capsys.readouterr().out
    assert "finds at least about" in out
    assert "used last are remembered" in out
    assert "1 Mi" not in out
    assert "the last " in out


def test_the_chart_is_drawn_as_svg(log, tmp_path, capsys):
    plot = tmp_path / "rates.svg"
    assert main(["analyze", str(log), "--plot", str(plot), "--policies", "lru,slru"]) == 0
    root = ElementTree.parse(plot).getroot()
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(lines) == 4
    assert {"lru", "slru", "lru, parts moved", "no bound", "4Ki", "16Mi"} <= set(texts)


def test_a_png_without_matplotlib_is_refused_before_anything_is_read(log, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["analyze", str(log), "--plot", "x.png"]) == 2
    assert "needs the extra 'plot'" in capsys.readouterr().err


def test_a_png_is_drawn_where_matplotlib_is(log, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "rates.png"
    assert main(["analyze", str(log), "--plot", str(plot), "--policies", "lru"]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--plot", "x.pdf"], "name a file that ends in .svg or .png"),
        (["--plot", "/no/such/folder/x.svg"], "x.svg cannot be written: No such file"),
        (["--tokenizer", "/no/such/folder"], "give the folder of a model"),
        (["--sizes", "1k,8"], "--sizes 8: a cache holds at least a page of 16"),
        (["--remember", "1k"], "remember at least the smallest of --sizes"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_cure(log, capsys, arguments, sentence):
    assert main(["analyze", str(log), *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "much"], "'much' is no size: write 65536, 64k, 16m or 1g"),
        (["--page-size", "0"], "'0' is no number from 1 up"),
        (["--policies", "lru,best"], "'best' is no policy: choose from lru,"),
    ],
)
def test_options_say_what_they_take(log, capsys, arguments, sentence):
    with pytest.raises(SystemExit) as ended:
        main(["analyze", str(log), *arguments])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_strict_stops_at_the_first_bad_line(log, capsys):
    assert main(["analyze", str(log), "--strict", "--policies", "lru"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: line 81: it is no JSON" in err


def test_a_log_without_requests_is_an_error_that_names_the_lines(tmp_path, capsys):
    log = tmp_path / "none.jsonl"
    log.write_text("{}\n" * 30)
    assert main(["analyze", str(log)]) == 1
    err = capsys.readouterr().err
    assert "no request in" in err
    assert "line 20:" in err
    assert "and 10 more" in err
    assert main(["analyze", str(tmp_path / "missing.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, capsys):
    log = tmp_path / "windows.jsonl"
    log.write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8-sig")
    assert main(["analyze", str(log), "--strict", "--policies", "lru"]) == 0
    assert "2 requests" in capsys.readouterr().out


def test_the_module_reads_standard_input():
    done = subprocess.run(
        [sys.executable, "-m", "phloem.radix_cache", "analyze", "-", "--policies", "lru"],
        input=b'{"text": "caf\xc3\xa9 \xff"}\n' * 3,
        capture_output=True,
        check=True,
    )
    assert b"3 requests" in done.stdout


def test_a_report_without_sizes_or_requests_renders():
    assert render(PrefixStats(sizes=[]).report()).startswith("0 requests, 0 tokens")
    with pytest.raises(ValueError, match="no cache sizes to draw"):
        chart_of(PrefixStats(sizes=[]).report())


def test_a_chart_of_one_size_is_drawn_in_the_middle():
    chart = Chart("a < b", "x", "y", (Line("only", ((4096.0, 0.5),)),))
    drawing = svg(chart)
    assert 'points="362.0,224.0"' in drawing
    assert "a &lt; b" in drawing


def test_axes_have_few_ticks():
    line = Line("many", tuple((float(n), 0.1) for n in range(1, 100)))
    assert len(ticks(Chart("", "", "", (line,)))) == 9
    assert [tokens_label(size) for size in (64, 4096, 3 * 2**19)] == ["64", "4Ki", "1.5Mi"]
