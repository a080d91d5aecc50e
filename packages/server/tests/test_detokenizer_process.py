from __future__ import annotations

import subprocess
import sys

import pytest

from phloem.server.detokenizer_process import DetokenizerService
from phloem.server.messages import Beat, Finish, Heard, TextOptions, TokenBatch, TokenNews


@pytest.fixture
def service(byte_level):
    return DetokenizerService(byte_level)


def news(rid, ids, finish=None, options=None):
    return TokenNews(rid, ids, finish, 1, len(ids), 0, options=options)


def test_each_request_has_its_own_text_from_its_first_news_to_its_last(service, byte_level):
    text = "žluť 🐎 and more"
    ids = byte_level.encode(text)
    shown = {"a": "", "b": ""}
    for i, token in enumerate(ids):
        last = i == len(ids) - 1
        batch = TokenBatch(
            [
                news(
                    rid,
                    [token],
                    Finish("length") if last else None,
                    TextOptions(stop, True) if i == 0 else None,
                )
                for rid, stop in (("a", []), ("b", ["never"]))
            ]
        )
        out = service.text_batch(batch).news
        assert [n.rid for n in out] == ["a", "b"]
        assert [n.token_ids for n in out] == [[token], [token]]
        for n in out:
            shown[n.rid] += n.text
    assert shown == {"a": text, "b": text}
    assert len(service) == 0


def test_a_request_that_ends_with_its_first_news_leaves_nothing(service):
    ended = news("a", [], Finish("abort", message="aborted"), TextOptions([], True))
    (out,) = service.text_batch(TokenBatch([ended])).news
    assert (out.text, out.finish) == ("", ended.finish)
    assert len(service) == 0


def test_the_process_needs_neither_torch_nor_numpy():
    code = (
        "import sys, phloem.server.detokenizer_process\n"
        "print([m for m in ('torch', 'numpy', 'phloem.scheduler') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_main_process_needs_no_torch():
    code = "import sys, phloem.server.serve; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_beat_is_answered(service):
    assert service.answer(Beat(7)) == Heard("detokenizer", 7)
