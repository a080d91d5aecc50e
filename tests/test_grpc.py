"""gRPC over a real engine: the results of HTTP, its refusals, and the end of what nobody awaits."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from phloem.server.background import running_server
from phloem.server.client import NO_RETRIES, AsyncClient, AsyncGrpcClient, RequestFailed, Retries
from phloem.server.config import ServerArgs
from phloem.server.grpc import phloem_pb2 as pb
from phloem.server.grpc.server import grpc_server, tls_credentials
from phloem.server.http import create_app
from phloem.server.http.auth import Access
from phloem.server.http_config import HttpArgs
from phloem.server.in_process import InProcessTransport
from phloem.server.keys import Key, KeyRing, digest_of
from phloem.server.launch import StartupError

SERVICE = "phloem.v1.Phloem"
ENDLESS = {"max_new_tokens": 90_000, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_new_tokens": 6}


class Running:
    """An app over an engine in this process, over gRPC and in process over HTTP."""

    def __init__(self, frontend, **app_options):
        self.frontend = frontend
        self._options = app_options
        self.loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()

    def start(self):
        self.run(self._start())

    async def _start(self):
        app = create_app(self.frontend, served_model_name="tiny", **self._options)
        enter = self._stack.enter_async_context
        self.server = await enter(grpc_server(app, "127.0.0.1", 0, 1 << 20))
        self.target = f"127.0.0.1:{self.server.port}"
        self.grpc = await enter(AsyncGrpcClient(self.target, retries=NO_RETRIES))
        transport = InProcessTransport(app)
        self.http = await enter(AsyncClient("http://x", retries=NO_RETRIES, transport=transport))
        self.channel = await enter(grpc.aio.insecure_channel(self.target))

    def run(self, work):
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def stop(self):
        self.run(self._stack.aclose())
        self.frontend.end()
        self.loop.close()

    async def until(self, **values):
        while not values.items() <= (await self.frontend.state()).items():
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def running(loop_frontend):
    """Serves models over gRPC until the end of the module."""
    made = []

    def make(model, access=None, **engine_options):
        options = {} if access is None else {"access": access}
        made.append(Running(loop_frontend(model=str(model), **engine_options), **options))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(scope="module")
def server(running, chat_llama):
    return running(chat_llama)


@pytest.fixture(scope="module")
def scripted(running, write_script):
    responses = [{"prompt_ids": [], "output": "x" * 95_000}]
    script = write_script(responses, context_length=100_000, pool_tokens=300_000)
    return running(script, max_running_requests=1, max_queued_requests=1)


def stable(result):
    return replace(result, request_id="", timings=sorted(result.timings), cached_tokens=0)


REQUESTS = [
    {"prompt": "abc", "sampling_params": GREEDY},
    {"input_ids": [65, 66], "sampling_params": GREEDY | {"top_logprobs": 2, "logit_bias": {70: 9}}},
    {"prompt": "abc", "sampling_params": GREEDY | {"top_logprobs": 0, "prompt_logprobs_from": 0}},
    {"prompt": "a", "sampling_params": {"seed": 5, "max_new_tokens": 9, "top_p": 0.9, "top_k": 40}},
    {"prompt": "a", "sampling_params": GREEDY | {"choices": ["yes", "no"]}},
    {"prompt": "a", "sampling_params": GREEDY | {"regex": "[0-9]{3}"}},
    {
        "prompt": "a",
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": 40,
            "json_schema": {"type": "object", "properties": {"a": {"type": "boolean"}}},
            "grammar_options": {"whitespace": "compact"},
        },
    },
    {
        "prompt": "a",
        "sampling_params": {"stop": "x", "logit_bias": {"121": 100}, "max_new_tokens": 3},
    },
]


class TestResults:
    @pytest.mark.parametrize("request_of", REQUESTS)
    def test_they_are_those_of_http(self, server, request_of):
        over_grpc = server.run(server.grpc.generate(**request_of))
        over_http = server.run(server.http.generate(**request_of))
        assert stable(over_grpc) == stable(over_http)
        assert over_grpc.finish is not None
        assert over_grpc.completion_tokens == len(over_grpc.token_ids) > 0

    @pytest.mark.parametrize("client", ["grpc", "http"])
    def test_a_stream_joined_is_the_whole(self, server, client):
        asked = REQUESTS[1]

        async def ask():
            whole = await getattr(server, client).generate(**asked)
            async with getattr(server, client).stream(**asked) as stream:
                return whole, [part async for part in stream]

        whole, parts = server.run(ask())
        assert len(parts) > 1
        assert "".join(part.text for part in parts) == whole.text
        assert [t for part in parts for t in part.token_ids] == whole.token_ids
        assert [entry for part in parts for entry in part.logprobs] == whole.logprobs
        assert [part.finish for part in parts] == [None] * (len(parts) - 1) + [whole.finish]

    def test_names_salts_and_times_are_passed_on(self, server):
        async def ask(salt):
            options = {"rid": f"own-{salt}", "cache_salt": salt, "timeout": 60.0}
            return await server.grpc.generate("a long salted prompt", GREEDY, **options)

        first, again, other = (server.run(ask(salt)) for salt in ("a", "a", "b"))
        assert first.request_id == "own-a"
        assert [r.cached_tokens > 0 for r in (first, again, other)] == [False, True, False]

    def test_vectors_are_those_of_http(self, server):
        for inputs in ("abc", ["abc", "d"], [[65, 66], [67]]):
            over_grpc = server.run(server.grpc.embed(inputs, pooling="last", dimensions=8))
            over_http = server.run(server.http.embed(inputs, pooling="last", dimensions=8))
            assert over_grpc == over_http
            assert {len(vector) for vector in over_grpc.embeddings} == {8}

    def test_it_says_what_it_serves(self, server):
        info = server.run(server.grpc.info())
        assert info == server.run(server.http.info())
        assert (info.model, info.context_length) == ("tiny", 512)


def refused(server, work):
    with pytest.raises(RequestFailed) as caught:
        server.run(work)
    error = caught.value
    return {"message": str(error), **vars(error)}


class TestRefusals:
    @pytest.mark.parametrize(
        "asked",
        [
            {"prompt": "a", "sampling_params": {"temperature": -1.0}},
            {"prompt": "a", "sampling_params": {"logit_bias": {300: 1.0}}},
            {"prompt": "a", "sampling_params": {"regex": "("}},
            {"prompt": "a", "sampling_params": {"json_schema": "{"}},
            {"prompt": "a" * 600},
            {"input_ids": []},
            {"input_ids": [300]},
            {"prompt": "a", "priority": 3},
            {"prompt": "a", "timeout": -1.0},
        ],
    )
    def test_they_have_the_sentence_of_http(self, server, asked):
        over_grpc = refused(server, server.grpc.generate(**asked))
        assert over_grpc == refused(server, server.http.generate(**asked))
        assert over_grpc["status"] == 400

        async def stream():
            async with server.grpc.stream(**asked) as parts:
                async for _ in parts:
                    pass

        assert refused(server, stream()) == over_grpc

    def test_a_call_without_a_prompt_is_an_invalid_argument(self, server):
        async def ask():
            call = server.channel.unary_unary(
                f"/{SERVICE}/Generate",
                pb.GenerateRequest.SerializeToString,
                pb.GenerateResponse.FromString,
            )
            await call(pb.GenerateRequest())

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            server.run(ask())
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "give either" in caught.value.details()

    def test_surplus_is_refused_with_the_time_to_come_again(self, scripted):
        async def ask():
            running = asyncio.ensure_future(scripted.grpc.generate("a", ENDLESS, rid="one"))
            await scripted.until(running=1)
            waiting = asyncio.ensure_future(scripted.grpc.generate("a", ENDLESS, rid="two"))
            await scripted.until(waiting=1)
            try:
                await scripted.grpc.generate("a", ENDLESS)
            finally:
                running.cancel()
                waiting.cancel()
                await asyncio.wait([running, waiting])
                await scripted.until(running=0, waiting=0)

        error = refused(scripted, ask())
        assert (error["status"], error["code"]) == (503, "overloaded")
        assert error["retry_after"] >= 1

    def test_a_key_is_asked_for_and_taken(self, running, write_script):
        keys = KeyRing([Key("one", digest_of(b"secret"))])
        server = running(write_script([{"prompt": "Say", "output": "hi"}]), Access(keys))
        assert refused(server, server.grpc.generate("Say"))["status"] == 401
        assert server.run(server.grpc.health()).ready

        async def ask(key):
            async with AsyncGrpcClient(server.target, api_key=key, retries=NO_RETRIES) as client:
                return (await client.generate("Say", {"temperature": 0})).text

        assert server.run(ask("secret")) == "hi"
        assert refused(server, ask("wrong"))["status"] == 401

    def test_a_server_that_is_gone_has_no_status(self, server):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]

        async def ask():
            async with AsyncGrpcClient(f"127.0.0.1:{port}", retries=NO_RETRIES) as client:
                assert not (await client.health()).ready
                await client.generate("a")

        assert refused(server, ask())["status"] is None

    def test_a_port_in_use_is_a_sentence(self, server):
        async def start():
            port = server.server.port
            async with grpc_server(None, "127.0.0.1", port, 1):
                pass

        with pytest.raises(StartupError, match=r"choose another --host or --grpc-port"):
            server.run(start())


@pytest.mark.parametrize(
    "method",
    [
        *(f"{SERVICE}/{name}" for name in ("Generate", "GenerateStream", "Embed", "Abort", "Info")),
        *(f"grpc.health.v1.Health/{name}" for name in ("Check", "Watch")),
    ],
)
def test_a_message_that_cannot_be_read_is_the_clients_error(server, method, caplog):
    streamed = method.endswith(("Stream", "Watch"))
    kind = server.channel.unary_stream if streamed else server.channel.unary_unary

    async def call():
        answer = kind(f"/{method}")(b"\xff\xff\xff")
        await (answer.read() if streamed else answer)

    with pytest.raises(grpc.aio.AioRpcError, match="the 3 bytes are no ") as caught:
        server.run(call())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in caplog.text


def test_a_message_that_is_too_large_is_sent_once(server):
    asked = []

    async def sleep(seconds):
        asked.append(seconds)

    async def call():
        async with AsyncGrpcClient(server.target, retries=Retries(sleep=sleep)) as client:
            await client.generate("x" * (2 << 20))

    with pytest.raises(RequestFailed, match="larger than max") as caught:
        server.run(call())
    assert (caught.value.status, asked) == (413, [])


def test_a_key_that_no_metadata_can_have_is_refused(server):
    with pytest.raises(ValueError, match="other than printable ASCII"):
        AsyncGrpcClient(server.target, api_key="schl\u00fcssel")


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """Certificates for localhost and for a client, each its own root."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    folder = tmp_path_factory.mktemp("pem")
    for name in ("server", "client"):
        made = (
            f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
        )
        files = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"]
        alt = ["-addext", "subjectAltName=DNS:localhost"]
        subprocess.run([openssl, *made.split(), *files, *alt], check=True, capture_output=True)
    return folder


class TestTls:
    """A server that shows a certificate, and wants one where it is told to."""

    @pytest.mark.parametrize("wanted", [False, True])
    def test_it_is_spoken_with_who_shows_what_is_wanted(self, pem, wanted):
        key, server, client = (str(pem / n) for n in ("server.key", "server.pem", "client.pem"))
        tls = tls_credentials(server, key, client if wanted else None)

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

        async def ask(port, credentials):
            target = f"localhost:{port}"
            async with AsyncGrpcClient(target, credentials=credentials) as asking:
                return (await asking.health()).ready

        root = (pem / "server.pem").read_bytes()
        pair = [(pem / f"client.{kind}").read_bytes() for kind in ("key", "pem")]

        async def story():
            async with grpc_server(app, "127.0.0.1", 0, 1 << 20, tls) as running:
                bare = grpc.ssl_channel_credentials(root)
                showing = grpc.ssl_channel_credentials(root, *pair)
                return [await ask(running.port, each) for each in (None, bare, showing)]

        assert asyncio.run(story()) == [False, not wanted, True]


class TestEnds:
    """What nobody waits for any more is aborted, and its memory freed."""

    def test_a_stream_that_is_closed(self, scripted):
        async def ask():
            async with scripted.grpc.stream("a", ENDLESS) as parts:
                first = await anext(parts)
                assert first.text.startswith("x")
            await scripted.until(running=0)

        scripted.run(ask())

    def test_a_call_that_is_cancelled(self, scripted):
        async def ask():
            task = asyncio.ensure_future(scripted.grpc.generate("a", ENDLESS))
            await scripted.until(running=1)
            task.cancel()
            await scripted.until(running=0)

        scripted.run(ask())

    def test_a_call_whose_deadline_passes(self, scripted):
        async def ask():
            call = scripted.channel.unary_stream(
                f"/{SERVICE}/GenerateStream",
                pb.GenerateRequest.SerializeToString,
                pb.GenerateResponse.FromString,
            )
            params = pb.SamplingParams(**ENDLESS)
            request = pb.GenerateRequest(text="a", sampling_params=params)
            try:
                async for _ in call(request, timeout=0.3):
                    pass
            finally:
                await scripted.until(running=0)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            scripted.run(ask())
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    @pytest.mark.parametrize("client", ["grpc", "http"])
    def test_one_that_is_aborted_by_its_id_keeps_what_it_has(self, scripted, client):
        async def ask():
            async with getattr(scripted, client).stream("a", ENDLESS, rid="mine") as parts:
                await anext(parts)
                assert await scripted.grpc.abort("mine") == 1
                return [part async for part in parts][-1].finish

        finish = scripted.run(ask())
        assert finish.type == "abort"
        assert scripted.run(scripted.grpc.abort("mine")) == 0


class TestHealth:
    def test_it_is_known_of_the_server_and_of_its_service(self, server):
        async def check(name):
            stub = health_pb2_grpc.HealthStub(server.channel)
            return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status

        assert {server.run(check(name)) for name in ("", SERVICE)} == {1}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            server.run(check("other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_server_that_drains_says_so_and_finishes_what_runs(write_script):
    script = write_script(
        [{"prompt_ids": [], "output": "x" * 95_000}], context_length=100_000, pool_tokens=300_000
    )
    http = HttpArgs(port=0, grpc_port=0, served_model_name="tiny", drain_seconds=1000.0)

    async def use(server):
        (line,) = [line for line in server.log if line.startswith("gRPC at ")]
        target = line.split()[-1]
        async with AsyncGrpcClient(target) as client, grpc.aio.insecure_channel(target) as channel:
            watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            statuses = [(await watched.read()).status]
            async with client.stream("a", {"max_new_tokens": 5000, "temperature": 0}) as parts:
                text = (await anext(parts)).text
                server.process.send_signal(signal.SIGTERM)
                statuses.append((await watched.read()).status)
                healths = [await client.health()]
                async with AsyncGrpcClient(target, retries=NO_RETRIES) as other:
                    with pytest.raises(RequestFailed, match="shutting down") as caught:
                        await other.generate("a")
                text += "".join([part.text async for part in parts])
            return statuses, healths, caught.value, text

    with running_server(ServerArgs(model=script), http) as server:
        statuses, (health,), refusal, text = asyncio.run(use(server))
        assert server.process.wait(20) == 0
    assert statuses == [1, 2]
    assert health.message == "the server says NOT_SERVING"
    assert (refusal.status, refusal.retry_after) == (503, 1000.0)
    assert text == "x" * 5000
    assert not any("Traceback" in line for line in server.log)


def test_more_connections_than_there_may_be_are_closed():
    async def story():
        async with grpc_server(None, "127.0.0.1", 0, 1 << 20, None, 1) as running:
            kept = await asyncio.open_connection("127.0.0.1", running.port)
            assert await kept[0].read(1)
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            kept[1].close()

    asyncio.run(story())
