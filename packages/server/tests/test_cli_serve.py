from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest

from phloem.server.background import _flags
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs


def test_help_lists_every_option_in_the_group_that_it_belongs_to(phloem):
    out = phloem("serve", "--help").out
    groups = ("Engine", "Memory", "Scheduling", "Grammar", "HTTP")
    titles = [f"{group} options:" for group in groups]
    starts = [out.index(title) for title in [*titles, "Other options:"]]
    assert starts == sorted(starts)
    sections = dict(zip(titles, (out[a:b] for a, b in pairwise(starts))))
    for field in (*fields(ServerArgs), *fields(HttpArgs)):
        flag = "--" + field.name.replace("_", "-")
        assert flag in sections[f"{field.metadata['group']} options:"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--page-size", "3"], "page_size 3 is no power of two"),
        (["--max-total-tokens", "0"], "max_total_tokens 0 lets nobody in"),
        (["--max-running-requests", "0"], "max_running_requests 0 lets nobody in"),
        (["--mem-fraction-static", "1.5"], "mem_fraction_static 1.5 is no share"),
        (["--mem-fraction-static", "nan"], "mem_fraction_static nan is no share"),
        (["--schedule-conservativeness", "nan"], "schedule_conservativeness nan must be more"),
        (["--schedule-conservativeness", "inf"], "schedule_conservativeness inf must be more"),
        (["--enable-mixed-chunk", "--itl-target-ms", "nan"], "itl_target_ms nan must be more"),
        (["--schedule-low-priority-values-first"], "set enable_priority_scheduling too"),
        (["--cache-idle-ttl", "5", "--disable-radix-cache"], "cache_idle_ttl 5 is for prefixes"),
        (["--grammar-compile-timeout", "0"], "grammar_compile_timeout 0 is no time"),
        (["--grammar-backend", "outlines"], "grammar_backend 'outlines' is unknown"),
        (["--port", "65536"], "port 65536 is no port"),
        (["--served-model-name", ""], "served_model_name is empty"),
        (["--drain-seconds", "-1"], "drain_seconds -1 is no time to wait"),
        (["--log-level", "odd"], "--log-level"),
        (["--model", "./nothing-here"], "There is no file or folder"),
    ],
)
def test_bad_options_end_with_2_and_their_sentence(phloem, flags, says):
    done = phloem("serve", *flags)
    assert (done.code, says in done.err) == (2, True)


def test_options_become_the_flags_that_say_the_same():
    args = ServerArgs(
        model="m", page_size=4, enable_mixed_chunk=True, enable_overlap=False, random_seed=0
    )
    assert _flags(args) == [
        *("--model", "m", "--page-size", "4", "--enable-mixed-chunk"),
        *("--no-enable-overlap", "--random-seed", "0"),
    ]
    assert _flags(HttpArgs(port=0)) == ["--port", "0"]
