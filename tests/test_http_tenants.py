"""Callers with keys over one engine: what is kept apart, and what each may do."""

from __future__ import annotations

import threading

import pytest

from phloem.server.http.auth import Access
from phloem.server.http.limits import Limiter
from phloem.server.keys import KeyLimits, make_ring
from phloem.server.probe_paths import OPEN_PATHS

PROMPT = "The same long prompt, which several callers send one after the other. "
ENDLESS = 90_000


@pytest.fixture(scope="module")
def script(write_script):
    return write_script([], context_length=100_000, pool_tokens=500_000)


def access(**options):
    return Access(make_ring(("one", "two"), None, "boss"), **options)


@pytest.fixture(scope="module")
def keyed(script, serve):
    return serve(script, {"access": access(), "options": {"model": "/a/path"}})


@pytest.fixture(scope="module")
def sharing(script, serve):
    return serve(script, {"access": access(share_cache=True)})


def ask(server, path, key, body):
    return server.http.post(path, json=body, headers={"x-api-key": key})


def cached(server, path, key, **fields):
    """How many tokens of the prompt were found in the cache."""
    if path == "/generate":
        body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 2}}
    elif path == "/v1/completions":
        body = {"prompt": PROMPT, "max_tokens": 2}
    else:
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    answer = ask(server, path, key, body | fields)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    if path == "/generate":
        return content["meta_info"]["cached_tokens"]
    return content["usage"]["prompt_tokens_details"]["cached_tokens"]


GENERATE = ("/v1/chat/completions", "/v1/completions", "/generate")


@pytest.mark.parametrize("path", GENERATE)
def test_keys_never_find_what_others_have_cached_and_do_find_their_own(keyed, path):
    assert ask(keyed, "/flush_cache", "boss", {}).status_code == 200
    assert cached(keyed, path, "one") == 0
    assert cached(keyed, path, "one") > 0
    assert cached(keyed, path, "two") == 0
    assert cached(keyed, path, "boss") == 0
    assert cached(keyed, path, "one", cache_salt="pepper") == 0
    assert cached(keyed, path, "two", cache_salt="pepper") == 0
    assert cached(keyed, path, "one", cache_salt="pepper") > 0


@pytest.mark.parametrize("path", GENERATE)
def test_keys_share_where_the_operator_says_so(sharing, path):
    assert ask(sharing, "/flush_cache", "boss", {}).status_code == 200
    assert cached(sharing, path, "one") == 0
    assert cached(sharing, path, "two") > 0
    assert cached(sharing, path, "two", cache_salt="pepper") == 0


def test_a_tenant_beside_a_key_is_a_400_that_names_it(keyed):
    answer = ask(keyed, "/v1/completions", "one", {"prompt": "x", "tenant": "two"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenant")


class Running:
    """A request of key one that goes on until somebody ends it."""

    def __init__(self, server, headers=None):
        self._headers = headers or {"x-api-key": "one"}
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server,))
        self._thread.start()
        assert self._begun.wait(30)

    def _run(self, server):
        body = {"text": "abc", "rid": "mine", "stream": True}
        body["sampling_params"] = {"max_new_tokens": ENDLESS, "ignore_eos": True}
        asked = {"json": body, "headers": self._headers}
        with server.http.stream("POST", "/generate", **asked) as answer:
            for line in answer.iter_lines():
                if line:
                    self._begun.set()

    def wait(self):
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_an_id_is_free_for_a_key_while_another_has_it(keyed):
    running = Running(keyed)
    body = {"text": "abc", "rid": "mine", "sampling_params": {"max_new_tokens": 1}}
    theirs, again = ask(keyed, "/generate", "two", body), ask(keyed, "/generate", "one", body)
    assert ask(keyed, "/abort_request", "one", {"rid": "mine"}).json() == {"aborted": 1}
    running.wait()
    assert (theirs.status_code, theirs.json()["meta_info"]["id"]) == (200, "mine")
    assert again.status_code == 400


def test_where_only_the_operator_has_a_key_nobody_without_a_name_ends_what_others_ask(
    serve, script
):
    server = serve(script, {"access": Access(make_ring((), None, "boss"))})
    running = Running(server, {"authorization": "Bearer somebody"})
    assert server.post("/abort_request", rid="mine").json() == {"aborted": 0}
    assert ask(server, "/abort_request", "boss", {"rid": "mine"}).json() == {"aborted": 1}
    running.wait()


def test_a_key_ends_only_its_own_requests(keyed):
    def end(key, **body):
        return ask(keyed, "/abort_request", key, body)

    running = Running(keyed)
    assert end("two", rid="mine").json() == {"aborted": 0}
    refused = end("one", abort_all=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
    assert end("one", rid="mine").json() == {"aborted": 1}
    running.wait()
    running = Running(keyed)
    assert end("boss", abort_all=True).json() == {"aborted": 1}
    running.wait()


@pytest.mark.parametrize("shared", [False, True])
def test_nobody_learns_from_a_compilers_cache_what_others_ask_unless_they_share(
    keyed, sharing, shared
):
    server = sharing if shared else keyed

    def compiled(key):
        before = stats()
        body = {"prompt": "a", "max_tokens": 1, "regex": "[0-9]{17}"}
        assert ask(server, "/v1/completions", key, body).status_code == 200
        return stats()["compiled"] - before["compiled"]

    def stats():
        info = server.http.get("/server_info", headers={"x-api-key": "boss"}).json()
        return {"compiled": 0} | info["grammar"]

    first, second, again = compiled("one"), compiled("two"), compiled("two")
    assert (second, again) == (0 if shared else first, 0)


def test_options_of_the_server_are_for_its_operator(keyed):
    mine, bosss = (
        keyed.http.get("/server_info", headers={"x-api-key": key}).json() for key in ("one", "boss")
    )
    assert not {"options", "state", "grammar"} & set(mine)
    assert {"state", "grammar"} <= set(bosss)
    assert bosss["options"] == {"model": "/a/path"}
    assert mine["limits"] == bosss["limits"]


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_probes_are_open_and_all_answers_have_a_name(keyed, path):
    answer = keyed.http.get(path, headers={"x-request-id": "probe-7"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "probe-7")
    assert keyed.http.get("/v1/models").headers["x-request-id"].startswith("req_")


def test_every_route_but_the_probes_and_the_page_wants_a_key(keyed, sharing):
    document = keyed.http.get("/openapi.json", headers={"x-api-key": "one"}).json()
    for path, methods in document["paths"].items():
        for method in methods:
            status = keyed.http.request(method, path.replace("{", "").replace("}", "")).status_code
            assert (status == 401) == (path not in OPEN_PATHS), path


@pytest.fixture(scope="module")
def limited(script, serve):
    limits = KeyLimits(requests=4, tokens=1000, concurrent=3)
    return serve(script, {"access": access(), "limiter": Limiter(limits, lambda: 0.0)})


@pytest.mark.parametrize("stream", [False, True])
def test_limits_are_each_keys_own_and_answers_tell_what_is_left(limited, stream):
    key = "two" if stream else "one"
    body = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True, "stream": stream}
    first = ask(limited, "/v1/completions", key, body | {"n": 3})
    assert first.status_code == 200, first.text
    assert first.headers["x-ratelimit-limit-requests"] == "4"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) == 1000 - 3 * len("hello")
    many = ask(limited, "/v1/completions", key, body | {"n": 4})
    assert (many.status_code, "3 at a time" in many.text) == (429, True)
    second = ask(limited, "/v1/completions", key, body)
    # What the first one wrote is paid for too.
    assert int(second.headers["x-ratelimit-remaining-tokens"]) == 1000 - 4 * len("hello") - 12
    third = ask(limited, "/v1/completions", key, body)
    assert (third.status_code, third.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert third.headers["retry-after"] == "15"
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert ask(limited, "/v1/completions", "boss", body).status_code == 200
