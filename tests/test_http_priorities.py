"""Priorities and tenants, as clients meet them."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from phloem.scheduler import policy_names
from phloem.server.config import ServerArgs

LONG = {
    "text": "long",
    "rid": "long",
    "sampling_params": {"max_new_tokens": 50_000, "ignore_eos": True},
}
SHORT = {"max_tokens": 3, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def script(write_script):
    return write_script([], context_length=60_000, pool_tokens=100_000)


@pytest.fixture(scope="module")
def urgent(phloem_serve, script):
    """Real processes."""
    return phloem_serve(
        script,
        max_running_requests=1,
        enable_priority_scheduling=True,
        priority_preemption_threshold=0,
        enable_tenant_fairness=True,
    )


@pytest.fixture(scope="module")
def plain(serve, script):
    return serve(script, max_running_requests=4)


def test_every_policy_can_be_chosen_by_its_name():
    for name in policy_names():
        assert ServerArgs(schedule_policy=name).schedule_policy == name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority_preemption_threshold": 1}, "needs enable_priority_scheduling"),
        ({"itl_target_ms": 50.0}, "needs enable_mixed_chunk"),
        ({"itl_target_ms": 50.0, "enable_mixed_chunk": True, "chunked_prefill_size": -1}, "chunks"),
        ({"aging_tokens": -1}, "aging_tokens -1 is negative"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        ServerArgs(**options)


@contextmanager
def running(server):
    """While a long request that nobody called urgent has the only place."""
    ask = threading.Thread(target=lambda: server.http.post("/generate", json=LONG))
    ask.start()
    while not state(server)["running"]:
        pass
    try:
        yield
    finally:
        server.post("/abort_request", rid="long")
        ask.join()


def state(server):
    return server.http.get("/server_info").json()["state"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_an_urgent_request_is_answered_while_another_runs(urgent, path):
    body = {"priority": 3}
    if path == "/v1/chat/completions":
        body |= SHORT | {"messages": [{"role": "user", "content": "now"}]}
    elif path == "/generate":
        body |= {"text": "now", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    else:
        body |= SHORT | {"prompt": "now"}
    with running(urgent):
        assert urgent.http.post(path, json=body).status_code == 200
        now = state(urgent)
        assert now["running"] + now["waiting"] == 1, "the long one goes on"


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_a_priority_that_would_be_ignored_is_a_400(plain, path):
    prompt = {"text": "x"} if path == "/generate" else {"prompt": "x"}
    answer = plain.http.post(path, json=prompt | {"priority": 1})
    assert answer.status_code == 400
    assert "enable_priority_scheduling" in answer.text
    assert plain.http.post(path, json=prompt | {"priority": 0}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_tenants_are_taken_from_the_key_or_else_the_field(urgent, path):
    body = SHORT | {"prompt": "x"}
    if path == "/v1/chat/completions":
        body = SHORT | {"messages": [{"role": "user", "content": "x"}]}
    elif path == "/generate":
        body = {"text": "x", "sampling_params": {"max_new_tokens": 3}}

    def ask(headers=None, **fields):
        return urgent.http.post(path, json=body | fields, headers=headers)

    key = {"Authorization": "Bearer secret"}
    assert ask(tenant="a").status_code == 200
    assert ask(key).status_code == 200
    assert ask(key, tenant=None).status_code == 200
    assert ask(tenant=5).status_code == 400
    both = ask(key, tenant="a")
    assert both.status_code == 400
    assert both.json()["error"]["param"] == "tenant"
    assert "leave it out" in both.text
    assert ask(key, tenant="").status_code == 400
    assert ask(tenant="a" * 256).status_code == 200
    long = ask(tenant="a" * 257)
    assert long.status_code == 400
    assert "tenant has 257 characters" in long.text
