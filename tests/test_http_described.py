"""The description of the HTTP API, and that the server does what it says."""

from __future__ import annotations

import pytest
from repository_scripts import load_script

from phloem.server.http.answers import ANSWERS
from phloem.server.http.limits import Limiter
from phloem.server.keys import KeyLimits

EXAMPLES = 8
"""Requests to each endpoint, of those that the description allows and of those that it does not."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


@pytest.fixture(scope="module")
def fuzz():
    return load_script("fuzz_http")


@pytest.fixture(scope="module")
def server(serve, write_script):
    output = "hello there, and so on. " * 20
    script = write_script([{"prompt_ids": [], "output": output}], context_length=256)
    made = serve(script)
    yield made
    # Whatever was asked for has left nothing behind.
    state = made.http.get("/server_info").json()["state"]
    assert state["running"] == state["waiting"] == state["used"] == 0


@pytest.fixture(scope="module")
def described(server):
    return server.http.get("/openapi.json").json()


def test_every_endpoint_says_what_it_answers(described):
    found = {(method, path) for path, item in described["paths"].items() for method in item}
    assert found == set(ANSWERS)


def test_no_description_is_left_of_what_cannot_be(described):
    operations = [each for item in described["paths"].values() for each in item.values()]
    assert all("422" not in each["responses"] for each in operations)
    assert "HTTPValidationError" not in described["components"]["schemas"]


def test_probes_want_no_key_and_all_else_may(described):
    assert described["paths"]["/health"]["get"]["security"] == []
    assert "security" not in described["paths"]["/v1/models"]["get"]
    assert {} in described["security"], "this server has no keys, and wants none"


def test_streams_and_errors_have_their_types(described):
    answers = described["paths"]["/v1/messages"]["post"]["responses"]
    assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
    assert answers["529"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "AnthropicError"
    )
    answers = described["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert answers["503"]["content"]["application/json"]["schema"]["$ref"].endswith("OpenAIError")
    assert "Retry-After" in answers["429"]["headers"]


def test_all_that_a_keys_limits_refuse_says_so(serve, write_script, fuzz, described):
    limiter = Limiter(KeyLimits(requests=1))
    limited = serve(write_script([], context_length=256), {"limiter": limiter})
    statuses = {}
    for path, body in fuzz.BODIES.items():
        # Of two requests the second is one too many, where they are counted.
        statuses[path] = [limited.post(path, **body).status_code for _ in range(2)][-1]
        limited.post("/continue_generation")
    refused = {path for path, status in statuses.items() if status == 429}
    paths = described["paths"]
    assert refused == {path for path in statuses if "429" in paths[path]["post"]["responses"]}


@pytest.fixture(scope="module")
def schema(server):
    schemathesis = pytest.importorskip(
        "schemathesis", reason="the package schemathesis is not installed"
    )
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def known_id(server, path):
    """One that there is."""
    if path.startswith("/v1/models"):
        return "tiny"
    return server.post("/v1/responses", input="hello", max_output_tokens=2).json()["id"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"), [pytest.param(*each, id=" ".join(each)) for each in ANSWERS]
)
def test_requests_made_from_the_description_are_answered_as_it_says(
    server, schema, fuzz, method, path
):
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    schemathesis.checks.load_all_checks()
    wanted = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    operation = schema[path][method]
    legal = fuzz.BODIES.get(path)

    def ask(case, data):
        if legal is not None and isinstance(case.body, dict) and data.draw(st.integers(0, 3)):
            # Of what was made few fields at a time, since any of them may be out of its range.
            kept = data.draw(st.sets(st.sampled_from(sorted(case.body) or [""]), max_size=2))
            case.body = {**legal, **{name: case.body[name] for name in kept if name}}
        if isinstance(case.body, dict):
            # Who will not wait is refused with a 503, as they should be.
            case.body.pop("queue_timeout", None)
        if "{id}" in path and data.draw(st.booleans()):
            case.path_parameters = {"id": known_id(server, path)}
        response = case.call()
        if path == "/pause_generation":
            server.http.post("/continue_generation")
        case.validate_response(response, checks=wanted)

    for mode in schemathesis.GenerationMode:
        cases = operation.as_strategy(generation_mode=mode)
        options = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seed(8)(options(given(cases, st.data())(ask)))()
