"""Who may ask for what, request ids, and pages of other origins: the middleware alone."""

from __future__ import annotations

import asyncio
import json

import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from phloem.server.http.auth import Access, Gate
from phloem.server.http.cors import Cors
from phloem.server.http.error_answers import install_handlers
from phloem.server.http.errors import ApiError
from phloem.server.http.metrics import Metrics
from phloem.server.http.request_id import checked_rids
from phloem.server.http.surround import Surround
from phloem.server.http.tenancy import Caller, caller_of, namespace_of, tell_tenant
from phloem.server.keys import make_ring


class Answered:
    def __init__(self, messages):
        self.status = messages[0]["status"]
        self.headers = {k.decode(): v.decode() for k, v in messages[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in messages[1:])
        self.error = json.loads(body).get("error") if body else None
        self.json = json.loads(body) if body else None


def ask(app, path, method="GET", **headers):
    messages = []
    given = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": given}
    scope |= {"query_string": b"", "server": ("test", 80), "scheme": "http", "root_path": ""}

    async def receive():
        raise AssertionError("nothing of the body may be read")

    async def send(message):
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    return Answered(messages)


def app_with(keys=(), admin=None, origins=(), **options):
    app = FastAPI()
    install_handlers(app)
    app.add_middleware(
        Gate, access=Access(make_ring(keys, None, admin), **options), max_body_bytes=100
    )
    if origins:
        app.add_middleware(Cors, origins=origins)
    app.add_middleware(Surround, metrics=Metrics())

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def anything(request: Request):
        caller = caller_of(request)
        return JSONResponse(
            {"id": caller.key_id, "name": caller.name, "admin": caller.admin}
            | {"namespace": caller.namespace, "tenant": caller.tenant}
            | {"request_id": request.scope["state"]["request_id"]}
        )

    return app


@pytest.fixture
def keyed():
    return app_with(("one", "two"), "boss")


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": "Bearer one"},
        {"authorization": "bearer  one "},
        {"x_api_key": "one"},
        {"authorization": "Bearer wrong", "x_api_key": "one"},
    ],
)
def test_a_key_is_taken_from_either_header(keyed, header):
    answered = ask(keyed, CHAT, "POST", **header)
    assert (answered.status, answered.json["name"]) == (200, "key-1")


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic one"},
        {"authorization": "one"},
        {"authorization": "Bearer "},
        {"x_api_key": "one two"},
        {"x_api_key": ""},
        {"cookie": "x-api-key=one"},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/server_info", "/nowhere", "/docs", "/"])
def test_all_else_is_a_401_that_tells_no_key(keyed, header, path):
    answered = ask(keyed, path, **header)
    assert (answered.status, answered.error["code"]) == (401, "invalid_api_key")
    assert answered.headers["www-authenticate"] == "Bearer"
    assert answered.headers["x-request-id"]
    assert "wrong" not in answered.error["message"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping", "/ui", "/ui/js/main.js"])
def test_probes_and_the_page_need_no_key(keyed, path):
    answered = ask(keyed, path)
    assert (answered.status, answered.json["admin"]) == (200, False)


CONTROL = ("/flush_cache", "/pause_generation", "/continue_generation", "/update_weight_version")


@pytest.mark.parametrize("path", [*CONTROL, "/ui/api/snapshot", "/ui/api"])
def test_what_concerns_all_needs_the_admin_key(keyed, path):
    assert ask(keyed, path, "POST").status == 401
    refused = ask(keyed, path, "POST", x_api_key="one")
    assert (refused.status, refused.error["code"]) == (403, "admin_key_required")
    assert ask(keyed, path, "POST", x_api_key="boss").json["admin"] is True
    none = ask(app_with(("one",)), path, "POST", x_api_key="one")
    assert (none.status, "--admin-api-key" in none.error["message"]) == (403, True)


@pytest.mark.parametrize(
    ("access", "statuses"),
    [("open", [200, 200, 200]), ("key", [401, 200, 200]), ("admin", [401, 403, 200])],
)
def test_who_reads_metrics_is_an_option(access, statuses):
    app = app_with(("one",), "boss", metrics=access)
    asked = [ask(app, "/metrics"), *(ask(app, "/metrics", x_api_key=k) for k in ("one", "boss"))]
    assert [each.status for each in asked] == statuses


def test_with_an_admin_key_alone_only_control_is_closed():
    app = app_with((), "boss")
    answered = ask(app, CHAT, "POST", authorization="Bearer whoever")
    assert (answered.status, answered.json["admin"]) == (200, False)
    assert ask(app, "/flush_cache", "POST").status == 401
    assert ask(app, "/flush_cache", "POST", x_api_key="boss").status == 200


def test_without_keys_everybody_may_do_everything_and_credentials_name_the_tenant():
    app = app_with()
    plain = ask(app, "/flush_cache", "POST")
    assert (plain.json["admin"], plain.json["tenant"], plain.json["namespace"]) == (True, None, [])
    a, b = (ask(app, CHAT, authorization=f"Bearer {k}").json for k in "ab")
    assert a["tenant"] != b["tenant"]
    assert a["namespace"] == b["namespace"] == []


def test_each_key_has_a_namespace_of_its_own_unless_they_share(keyed):
    one, two = (ask(keyed, CHAT, x_api_key=k).json for k in ("one", "two"))
    assert one["namespace"] == [one["id"]] != two["namespace"]
    assert one["tenant"] == one["id"]
    shared = app_with(("one", "two"), share_cache=True)
    assert ask(shared, CHAT, x_api_key="one").json["namespace"] == []
    assert ask(shared, CHAT, x_api_key="one").json["tenant"] == one["id"]


def test_namespaces_of_callers_and_salts_never_meet():
    callers = [Caller(), Caller("a", namespace=("a",)), Caller("b", namespace=("b",))]
    salts = [None, "", "a", "b"]
    made = {namespace_of(caller, salt) for caller in callers for salt in salts}
    assert len(made) == len(callers) * len(salts)


def test_a_known_caller_is_the_tenant_and_nobody_else():
    class Body:
        tenant = None

    tell_tenant(Body, Caller("a", tenant="a"))
    assert Body.tenant == "a"
    with pytest.raises(ApiError, match="leave it out"):
        tell_tenant(Body, Caller("a", tenant="a"))


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(keyed):
    large = ask(keyed, CHAT, "POST", x_api_key="one", content_length="101")
    assert (large.status, large.error["code"]) == (413, "request_too_large")
    assert ask(keyed, CHAT, "POST", x_api_key="one", content_length="100").status == 200
    assert ask(keyed, CHAT, "POST", x_api_key="one", content_length="9" * 5000).status == 413


def test_a_request_has_its_clients_name_or_one_of_ours(keyed):
    given = ask(keyed, "/health", x_request_id="trace:7/a.b")
    assert given.headers["x-request-id"] == given.json["request_id"] == "trace:7/a.b"
    for bad in ("", "a b", 'a"b', "x" * 129, "ä", "a\x1b[31m"):
        made = ask(keyed, "/health", x_request_id=bad).headers["x-request-id"]
        assert made.startswith("req_")
        assert len(made) == 36
    names = {ask(keyed, "/health").headers["x-request-id"] for _ in range(9)}
    assert len(names) == 9


def test_errors_have_the_form_of_their_path(keyed):
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answered = ask(keyed, path)
        assert (answered.status, answered.json["type"]) == (401, "error")
        assert answered.json["error"]["type"] == "authentication_error"
    assert set(ask(keyed, "/v1/messages-not").json) == {"error"}


PAGE = "https://page.org"


def test_a_page_of_an_allowed_origin_may_read_answers_and_errors():
    app = app_with(("one",), origins=(PAGE,))
    for answered in (
        ask(app, CHAT, origin=PAGE, x_api_key="one"),
        ask(app, CHAT, origin=PAGE),
    ):
        assert answered.headers["access-control-allow-origin"] == PAGE
        assert answered.headers["vary"] == "origin"
    for origin in ("https://evil.org", f"{PAGE}.evil.org", "null"):
        refused = ask(app, CHAT, origin=origin, x_api_key="one")
        assert "access-control-allow-origin" not in refused.headers
        assert refused.headers["vary"] == "origin"


def test_a_preflight_is_answered_without_a_key():
    app = app_with(("one",), origins=(PAGE,))
    wants = {"access_control_request_method": "POST", "access_control_request_headers": "x-api-key"}
    allowed = ask(app, CHAT, "OPTIONS", origin=PAGE, **wants)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, PAGE)
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert allowed.headers["access-control-allow-headers"] == "x-api-key"
    assert allowed.headers["x-request-id"]
    refused = ask(app, CHAT, "OPTIONS", origin="https://evil.org", **wants)
    assert not [name for name in refused.headers if name.startswith("access-control")]
    assert ask(app, CHAT, "OPTIONS", origin=PAGE).status == 401


def test_any_origin_is_allowed_by_a_star_and_none_by_default():
    star = ask(app_with(origins=("*",)), "/health", origin=PAGE)
    assert star.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in star.headers
    assert "access-control-allow-origin" not in ask(app_with(), "/health", origin=PAGE).headers


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["a"], "1 ids were given for 2"),
        (["a", "a"], "the same id twice"),
        (["a", ""], "0 characters"),
        (["a", "x" * 257], "257 characters"),
        (["a", "x\0"], "printable"),
    ],
)
def test_ids_that_cannot_stand_for_sequences_are_refused(given, says):
    with pytest.raises(ApiError, match=says) as caught:
        checked_rids(given, 2, "sequences")
    assert caught.value.param == "rid"
    assert checked_rids(["a", "x" * 256], 2, "sequences") == ["a", "x" * 256]


def test_the_admin_key_counts_in_either_header():
    access = Access(make_ring(("one",), None, "boss"))
    for bearer, other in ((b"one", b"boss"), (b"boss", b"one")):
        headers = [(b"authorization", b"Bearer " + bearer), (b"x-api-key", other)]
        assert access.caller("/flush_cache", headers).admin
