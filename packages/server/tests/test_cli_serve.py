from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest

from phloem.server.background import _flags, _secrets
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs


def test_help_lists_every_option_in_the_group_that_it_belongs_to(phloem):
    out = phloem("serve", "--help").out
    options = (*fields(ServerArgs), *fields(HttpArgs))
    groups = ["Configuration", *dict.fromkeys(each.metadata["group"] for each in options)]
    titles = [f"{group} options:" for group in groups]
    starts = [out.index(title) for title in [*titles, "Other options:"]]
    assert starts == sorted(starts)
    sections = dict(zip(titles, (out[a:b] for a, b in pairwise(starts))))
    for field in options:
        flag = "--" + field.name.replace("_", "-")
        assert flag in sections[f"{field.metadata['group']} options:"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--page-size", "3"], "page_size 3 is no power of two"),
        (["--max-total-tokens", "0"], "max_total_tokens 0 lets nobody in"),
        (["--max-total-tokens", "11", "--page-size", "4"], "a request needs 12 at least"),
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
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--device", "cuda:1", "--kernel-backend", "cpu"], "use device cpu, or kernel_backend"),
        (["--kernel-backend", "cpu", "--dtype", "bfloat16"], "computes in float32"),
        (["--request-timeout", "5", "--queue-timeout", "5"], "queue_timeout 5 is never reached"),
        (
            ["--grammar-backend", "none", "--grammar-whitespace", "compact"],
            "grammar_whitespace compact does nothing, since grammar_backend none",
        ),
        (["--grammar-backend", "none", "--no-jump-forward"], "jump_forward does nothing"),
        (
            ["--schedule-policy", "fcfs", "--lpm-fallback-above", "64"],
            "lpm_fallback_above 64 does nothing, since schedule_policy fcfs",
        ),
        (["--crash-dump-dir", "/dev/null/dumps"], "crash_dump_dir '/dev/null/dumps' cannot be"),
        (["--tool-call-parser", "gpt-oss", "--reasoning-parser", "qwen3"], "different notations"),
        (["--log-requests", "text", "--log-level", "error"], "log_requests text shows nothing"),
        (
            ["--api-key", "k", "--share-cache-between-keys", "--disable-radix-cache"],
            "share_cache_between_keys does nothing, since disable_radix_cache",
        ),
        (["--port", "65536"], "port 65536 is no port"),
        (["--served-model-name", ""], "served_model_name is empty"),
        (["--drain-seconds", "-1"], "drain_seconds -1 is no time to wait"),
        (["--log-level", "odd"], "--log-level"),
        (["--api-keys-file", "./no-keys"], "the keys file no-keys cannot be read"),
        (["--admin-api-key", "a b"], "visible ASCII"),
        (["--api-key", "x", "--admin-api-key", "x"], "key-1 and admin are the same"),
        (["--share-cache-between-keys"], "between which nothing is apart"),
        (["--metrics-access", "admin"], "without an admin_api_key"),
        (["--rate-limit-requests", "0"], "rate_limit_requests 0 lets nobody in"),
        (["--max-concurrent-per-key", "-1"], "max_concurrent_per_key -1 lets nobody in"),
        (["--cors-origin", "https://a.org/page"], "is no origin"),
        (["--ssl-keyfile", "k"], "ssl_keyfile was given without an ssl_certfile"),
        (["--ssl-ca-certs", "c"], "ssl_ca_certs was given without an ssl_certfile"),
        (["--ssl-client-certs", "optional"], "was given without ssl_ca_certs"),
        (["--ssl-certfile", "./no-cert"], "ssl_certfile ./no-cert cannot be read"),
        (["--max-connections", "0"], "max_connections 0 lets nobody in"),
        (["--max-request-bytes", "0"], "max_request_bytes 0 lets nobody in"),
        (["--header-timeout", "nan"], "header_timeout nan is no time to wait"),
        (["--body-timeout", "0"], "body_timeout 0 is no time to wait"),
        (["--model", "./nothing-here"], "There is no file or folder"),
    ],
)
def test_bad_options_end_with_2_and_their_sentence(phloem, flags, says):
    done = phloem("serve", *flags)
    assert (done.code, says in done.err) == (2, True)


@pytest.mark.parametrize("tier", [("--host-cache-gb", "1"), ("--disk-cache", "folder")])
def test_a_tier_below_a_cache_that_is_off_is_refused_before_any_model_is_read(phloem, tier):
    """Case CL-01."""
    done = phloem("serve", "--model", "./nothing-here", "--disable-radix-cache", *tier)
    assert (done.code, "leave one of them" in done.err) == (2, True)
    assert "nothing-here" not in done.err


def test_options_become_the_flags_that_say_the_same():
    args = ServerArgs(
        model="m", page_size=4, enable_mixed_chunk=True, enable_overlap=False, random_seed=0
    )
    assert _flags(args) == [
        *("--model", "m", "--page-size", "4", "--enable-mixed-chunk"),
        *("--no-enable-overlap", "--random-seed", "0"),
    ]
    assert _flags(HttpArgs(port=0)) == ["--port", "0"]


def test_keys_go_to_a_server_by_its_environment_and_are_never_shown():
    http = HttpArgs(port=0, api_key=("one", "two"), admin_api_key="boss", cors_origin=("*",))
    assert _flags(http) == ["--port", "0", "--cors-origin", "*"]
    assert _secrets(http) == {"PHLOEM_API_KEYS": "one two", "PHLOEM_ADMIN_API_KEY": "boss"}
    assert not {"one", "boss"} & set(repr(http).replace("'", " ").split())


def test_a_server_takes_its_keys_from_the_environment(phloem, monkeypatch):
    monkeypatch.setenv("PHLOEM_API_KEYS", "one two")
    monkeypatch.setenv("PHLOEM_ADMIN_API_KEY", "two")
    done = phloem("serve")
    assert (done.code, "key-2 and admin are the same" in done.err) == (2, True)
