"""The page at `/ui` as files, and the data that it shows, over an engine that is pretended."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace

import msgspec
import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from phloem.scheduler import SamplingParams
from phloem.server.frontend import GenerationRequest, ServiceUnavailable
from phloem.server.http.errors import ApiError
from phloem.server.http.inspect import add_inspection
from phloem.server.http.metrics import Metrics
from phloem.server.http.recent import KEPT, MOST_STEPS, Recent
from phloem.server.http.tenancy import Caller
from phloem.server.http.ui import add_ui, load_pages
from phloem.server.messages import Finish, TextNews

NODE = {"id": "1.4", "parent": -1, "start": 0, "end": 4}


class PretendedEngine:
    """A frontend whose tree has a node in the default namespace and one under a salt."""

    draining = False

    def __init__(self):
        self.asked = 0
        self.tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(map(chr, ids)))

    async def state(self):
        return {"running": 1}

    async def tree(self, limit):
        self.asked += 1
        spaces = [[], ["salt-of-ann"], ["salt-of-bob"]]
        namespaces = [{"namespace": space, "nodes": [NODE]} for space in spaces]
        return {"pool": {"free": 8}, "tree": {"policy": "lru", "namespaces": namespaces}}

    async def tree_node(self, id):
        if id == "x":
            raise ValueError("id 'x' is no node's")
        return [72, 105] if id == "1.4" else None


@pytest.fixture
def engine():
    return PretendedEngine()


@pytest.fixture
def recent():
    return Recent()


@pytest.fixture
def client(engine, recent):
    metrics = Metrics()
    service = SimpleNamespace(
        frontend=engine, metrics=metrics, model="m", generation=SimpleNamespace(recent=recent)
    )
    app = FastAPI()

    @app.middleware("http")
    async def as_caller(request: Request, call_next):
        admin = request.headers.get("x-api-key") != "mere"
        request.scope.setdefault("state", {})["caller"] = Caller(admin=admin)
        return await call_next(request)

    @app.exception_handler(ApiError)
    async def answer(request: Request, error: ApiError):
        return error.response()

    @app.exception_handler(ServiceUnavailable)
    async def unavailable(request: Request, error: ServiceUnavailable):
        return ApiError(str(error), 503).response()

    add_inspection(app, service)
    add_ui(app, service)
    app.state.metrics = metrics
    return TestClient(app)


# The files.


def test_the_page_comes_with_a_policy_that_lets_nothing_else_run(client):
    response = client.get("/ui/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_without_the_slash_it_is_found_too_behind_any_prefix(client):
    response = client.get("/ui", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "ui/")


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}'])
def test_what_a_browser_has_is_not_sent_again(client, form):
    first = client.get("/ui/js/main.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    again = client.get("/ui/js/main.js", headers={"If-None-Match": form.format(tag)})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = client.get("/ui/js/main.js", headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


def test_the_head_of_a_file_is_that_of_its_content(client):
    whole, head = client.get("/ui/css/theme.css"), client.head("/ui/css/theme.css")
    assert head.content == b""
    assert head.headers == whole.headers


@pytest.mark.parametrize("path", ["nothing.js", "js", "../app.py", "js/../../http/ui.py", "%2e"])
def test_only_the_files_of_the_page_are_served(client, path):
    assert client.get(f"/ui/{path}").status_code == 404


def test_each_file_that_is_named_is_there_and_each_is_named(client):
    pages = load_pages()
    named = {"index.html"}
    index = pages["index.html"].content.decode()
    named |= set(re.findall(r'(?:href|src)="([\w/.]+\.\w+)"', index))
    for name in [name for name in pages if name.endswith(".js")]:
        imports = re.findall(r'from "\./([\w.]+)"', pages[name].content.decode())
        named |= {f"js/{each}" for each in imports}
    assert named == set(pages)


def test_nothing_of_it_is_elsewhere_or_inline():
    for name, page in load_pages().items():
        text = page.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:", text), name
        assert "innerHTML" not in text, name
        assert not re.search(r"<style|\sstyle=|\son\w+=\"", text), name


# The data.


def test_a_snapshot_shows_the_engine_and_hides_what_namespaces_are_called(client):
    response = client.get("/ui/api/snapshot")
    assert response.headers["cache-control"] == "no-store"
    shown = response.json()
    assert (shown["model"], shown["state"], shown["pool"]) == ("m", {"running": 1}, {"free": 8})
    default, ann, bob = (space["namespace"] for space in shown["tree"]["namespaces"])
    assert default == ""
    assert ann != bob
    assert "salt" not in response.text


def test_a_namespace_keeps_its_name_on_one_server_and_has_another_on_the_next(
    client, engine, recent
):
    def name(client):
        return client.get("/ui/api/snapshot").json()["tree"]["namespaces"][1]["namespace"]

    assert name(client) == name(client)
    app, metrics = FastAPI(), client.app.state.metrics
    service = SimpleNamespace(
        frontend=engine, metrics=metrics, model="m", generation=SimpleNamespace(recent=recent)
    )
    add_inspection(app, service)
    assert name(TestClient(app)) != name(client)


@pytest.mark.parametrize(("fresh", "questions"), [(1e9, 1), (-1, 5)])
def test_many_who_look_cost_the_scheduler_one_question(
    client, engine, monkeypatch, fresh, questions
):
    monkeypatch.setattr("phloem.server.http.inspect._SECONDS_FRESH", fresh)
    for _ in range(5):
        client.get("/ui/api/snapshot")
    assert engine.asked == questions


def test_the_snapshot_has_the_latencies_that_were_measured(client):
    metrics = client.app.state.metrics
    for seconds in (0.02, 0.02, 0.3):
        metrics.ttft.observe(seconds)
    metrics.generated.value += 5
    shown = client.get("/ui/api/snapshot").json()
    ttft = shown["histograms"]["ttft"]
    assert len(ttft["counts"]) == len(ttft["bounds"]) + 1
    found = {ttft["bounds"][at]: each for at, each in enumerate(ttft["counts"]) if each}
    assert found == {0.025: 2, 0.5: 1}
    assert shown["totals"]["generation_tokens"] == 5
    assert sum(shown["histograms"]["itl"]["counts"]) == 0


def test_the_text_of_a_node_is_told_where_it_is_still_there(client):
    assert client.get("/ui/api/node", params={"id": "1.4"}).json() == {
        "id": "1.4",
        "tokens": 2,
        "text": "Hi",
    }
    assert client.get("/ui/api/node", params={"id": "1.5"}).json()["text"] is None
    refused = client.get("/ui/api/node", params={"id": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "id")


@pytest.mark.parametrize(
    "path", ["/ui/api/snapshot", "/ui/api/node?id=1.4", "/ui/api/request?id=r"]
)
def test_what_concerns_all_callers_is_for_admins(client, path):
    refused = client.get(path, headers={"x-api-key": "mere"})
    assert refused.status_code == 403
    assert "admin key" in refused.json()["error"]["message"]


def test_the_times_of_a_request_are_told_by_its_id_while_it_is_known(client, recent):
    begun(recent).take(news(1))
    shown = client.get("/ui/api/request", params={"id": "r"})
    assert shown.headers["cache-control"] == "no-store"
    assert [tokens for _, tokens in shown.json()["steps"]] == [1]
    assert client.get("/ui/api/snapshot").json()["requests"][0]["rid"] == "r"
    assert client.get("/ui/api/request", params={"id": "other"}).status_code == 404


def test_a_scheduler_that_does_not_answer_is_a_503(client, engine, monkeypatch):
    async def hang():
        await asyncio.Event().wait()

    monkeypatch.setattr("phloem.server.http.inspect._SECONDS_TO_WAIT", 0.01)
    engine.state = hang
    refused = client.get("/ui/api/snapshot")
    assert refused.status_code == 503
    assert "did not answer" in refused.json()["error"]["message"]


# The last requests.


class Clock:
    now = 10.0

    def __call__(self):
        return self.now


def news(tokens, finish=None, **fields):
    return TextNews("r", "", [0], Finish(finish) if finish else None, 4, tokens, 3, **fields)


def listed(recent):
    return json.loads(msgspec.json.encode(recent.summaries()))


def begun(recent, rid="r"):
    return recent.begin(GenerationRequest(rid, [1, 2, 3, 4], SamplingParams()), recent.now())


def test_a_request_is_followed_from_its_start_to_its_end():
    clock = Clock()
    recent = Recent(clock)
    trace = begun(recent)
    shown = recent.described("r")
    assert (shown["finish"], shown["steps"], shown["cached_tokens"]) == (None, [], None)
    clock.now = 10.5
    trace.take(news(1))
    clock.now = 11
    marks = [("chunk", 0.1, 1), ("taken_back", 0.7, 0)]
    trace.take(news(2, "stop", retractions=1, timings={"queue": 0.25}, marks=marks))
    shown = recent.described("r")
    assert shown["steps"] == [(0.5, 1), (1.0, 2)]
    assert (shown["finish"], shown["seconds"], shown["cached_tokens"]) == ("stop", 1.0, 3)
    assert (shown["retractions"], shown["timings"]) == (1, {"queue": 0.25})
    assert [(each["kind"], each["at"], each["tokens"]) for each in shown["marks"]] == marks
    trace.end("abort")
    assert recent.described("r")["finish"] == "stop"


def test_the_list_has_how_requests_went_and_no_times_of_tokens():
    clock = Clock()
    recent = Recent(clock)
    trace = begun(recent)
    assert listed(recent)[0]["first"] is None
    clock.now = 10.5
    trace.take(news(1))
    clock.now = 11
    trace.take(news(2))
    (running,) = listed(recent)
    trace.take(news(3, "stop"))
    (ended,) = listed(recent)
    assert (running["first"], ended["first"]) == (0.5, 0.5)
    assert (running["completion_tokens"], running["finish"]) == (2, None)
    assert (ended["completion_tokens"], ended["finish"]) == (3, "stop")
    assert not {"steps", "marks"} & (running.keys() | ended.keys())


def test_one_that_its_client_left_has_ended_too():
    recent = Recent(Clock())
    begun(recent).end("abort")
    assert recent.described("r")["finish"] == "abort"


def test_running_ones_come_first_and_old_ones_are_forgotten():
    recent = Recent()
    for number in range(2 * KEPT):
        begun(recent, f"old-{number}").end("stop")
    begun(recent, "runs")
    rids = [each["rid"] for each in listed(recent)]
    assert rids == ["runs", *(f"old-{2 * KEPT - 1 - at}" for at in range(KEPT))]
    assert recent.described("old-0") is None


@pytest.mark.parametrize("tokens", [MOST_STEPS - 1, MOST_STEPS + 1, 10 * MOST_STEPS + 7])
def test_a_long_output_keeps_its_first_and_last_times_and_few_between(tokens):
    clock = Clock()
    recent = Recent(clock)
    trace = begun(recent)
    for at in range(1, tokens + 1):
        clock.now += 1
        trace.take(news(at, "length" if at == tokens else None))
    shown = recent.described("r")
    steps = shown["steps"]
    assert (steps[0], steps[-1]) == ((1.0, 1), (float(tokens), tokens))
    assert len(steps) <= MOST_STEPS + 1
    assert all(at == made for at, made in steps)
    assert steps == sorted(steps)
