"""The web server with its guards: TLS over real sockets, and what the options make of them."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from contextlib import asynccontextmanager

import pytest
import uvicorn

from phloem.server.direct_body import writer_of
from phloem.server.guarded_server import GuardedServer, guard_of
from phloem.server.http_config import HttpArgs
from phloem.server.keys import KeyLimits, add_key


async def in_parts(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one", b"two", b""):
        if not part or not (write := writer_of(scope)) or not write(part):
            await send({"type": "http.response.body", "body": part, "more_body": bool(part)})


async def hello(scope, receive, send):
    headers = [(b"content-length", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def serving(app=hello, **options):
    """A server that says hello; its port."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", interface="asgi3")
    config.load()
    server = GuardedServer(config, guard_of(HttpArgs(**options), pytest.fail))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def ask(port, tls=None, version="1.1"):
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    writer.write(f"GET / HTTP/{version}\r\nhost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


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


def server_files(pem):
    return {"ssl_certfile": str(pem / "server.pem"), "ssl_keyfile": str(pem / "server.key")}


def client_of(pem, *, shows=False):
    context = ssl.create_default_context(cafile=pem / "server.pem")
    if shows:
        context.load_cert_chain(pem / "client.pem", pem / "client.key")
    return context


def test_a_server_speaks_plain_http_by_default():
    async def story():
        async with serving() as port:
            assert (await ask(port)).endswith(b"hi")

    asyncio.run(story())


def test_who_knows_no_chunks_gets_an_answer_that_ends_with_the_connection():
    async def story():
        async with serving(in_parts) as port:
            head, _, body = (await ask(port, version="1.0")).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head
            assert body == b"onetwo"
        async with serving() as port:
            head, _, body = (await ask(port, version="1.0")).partition(b"\r\n\r\n")
            assert b"content-length: 2" in head
            assert body == b"hi"

    asyncio.run(story())


def test_with_a_certificate_it_speaks_tls_and_nothing_else(pem):
    async def story():
        async with serving(**server_files(pem)) as port:
            assert (await ask(port, client_of(pem))).endswith(b"hi")
            assert b"hi" not in await ask(port)

    asyncio.run(story())


@pytest.mark.parametrize("wanted", ["required", "optional"])
def test_clients_show_certificates_where_they_are_wanted(pem, wanted):
    async def story():
        files = server_files(pem) | {"ssl_ca_certs": str(pem / "client.pem")}
        async with serving(**files, ssl_client_certs=wanted) as port:
            assert (await ask(port, client_of(pem, shows=True))).endswith(b"hi")
            try:
                answer = await ask(port, client_of(pem))
            except (ssl.SSLError, ConnectionError):
                answer = b""
            assert answer.endswith(b"hi") == (wanted == "optional")

    asyncio.run(story())


def test_files_that_do_not_fit_are_a_sentence(pem):
    for files in (
        {"ssl_certfile": str(pem / "client.key")},
        {"ssl_certfile": str(pem / "server.pem"), "ssl_keyfile": str(pem / "client.key")},
        server_files(pem) | {"ssl_ca_certs": str(pem / "server.key")},
    ):
        with pytest.raises(ValueError, match="the files of TLS do not fit"):
            guard_of(HttpArgs(**files), pytest.fail)


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "192.168.7.7"}, True),
        ({"host": "0.0.0.0", "api_key": ("one",)}, False),
    ],
)
def test_trust_beyond_this_machine_is_warned_of_once(options, warns):
    told = []
    guard_of(HttpArgs(**options), told.append)
    assert len(told) == warns
    assert all(options["host"] in line and "--api-key" in line for line in told)


def test_limits_are_those_of_the_options(tmp_path):
    http = HttpArgs(max_connections=7, header_timeout=2.0, body_timeout=3.0, max_request_bytes=9)
    limits = guard_of(http, pytest.fail).connections
    assert (limits.connections, limits.body_bytes) == (7, 9)
    assert (limits.header_timeout, limits.body_timeout) == (2, 3)
    file = tmp_path / "keys"
    secret = add_key(file, "alice", KeyLimits(tokens=5))
    guard = guard_of(HttpArgs(api_keys_file=str(file), admin_api_key="boss"), pytest.fail)
    assert not guard.access.trusting
    assert guard.access.keys.find(secret.encode()).limits == KeyLimits(tokens=5)
    assert guard.access.keys.find(b"boss").admin


def test_more_connections_than_the_system_allows_are_cut_to_what_it_does_with_a_warning():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = []
    try:
        limits = guard_of(HttpArgs(max_connections=2**40), told.append).connections
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    if before[1] == resource.RLIM_INFINITY:
        pytest.skip("this machine limits nothing")
    assert 0 < limits.connections < before[1]
    assert "ulimit -n" in told[0]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_count_before_they_have_agreed_on_the_encryption(pem, loop):
    new_loop = (
        asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip(loop).new_event_loop
    )

    async def story():
        async with serving(**server_files(pem), max_connections=2) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            # Those that have said nothing for longest had to leave.
            for reader, _ in silent[:2]:
                assert await reader.read() == b""
            assert (await ask(port, client_of(pem))).endswith(b"hi")
            assert await silent[2][0].read() == b""
            for _, writer in silent:
                writer.close()

    made = new_loop()
    try:
        made.run_until_complete(story())
    finally:
        made.close()


def test_grpc_has_as_many_connections_again():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def room(**options):
        return guard_of(HttpArgs(max_connections=2**40, **options), bool).connections.connections

    try:
        alone, beside = room(), room(grpc_port=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    if before[1] == resource.RLIM_INFINITY:
        pytest.skip("this machine limits nothing")
    assert beside == alone // 2
