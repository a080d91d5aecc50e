"""Servers of processes for the tests of faults: what is asked of them, by sockets that say and
leave what a test wants, and what they are seen to hold. Faults are the tests' affair.
"""

from __future__ import annotations

import json
import socket
import struct
from contextlib import contextmanager

import httpx
import psutil

from phloem.server.background import running_server
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs

CHAT = {"messages": [{"role": "user", "content": "secret"}]}
LONG = 20_000
NAME = "tiny" + 2000 * "y"
"""Of the model, which is in each event: so streams soon have more bytes than a system keeps."""
BODIES = {
    "/v1/chat/completions": CHAT | {"max_tokens": LONG},
    "/v1/completions": {"prompt": "secret", "max_tokens": LONG},
    "/generate": {"text": "secret", "sampling_params": {"max_new_tokens": LONG}},
    "/v1/responses": {"input": "secret", "max_output_tokens": LONG},
    "/v1/messages": CHAT | {"model": NAME, "max_tokens": LONG},
}
TOKEN = b'"x"'


def lasting_script(write_script):
    """A model that says x to everybody, for longer than anybody asks for."""
    everybody = {"prompt_ids": [], "output": "x" * 25_000}
    return write_script([everybody], context_length=25_000, pool_tokens=200_000)


class Running:
    """A server of processes."""

    def __init__(self, server):
        self._server = server
        self.url, self.log, self.process = server.url, server.log, server.process
        self.http = httpx.Client(base_url=server.url, timeout=60)
        children = psutil.Process(server.process.pid).children(recursive=True)
        self.processes = {
            name: child
            for child in children
            for name in ("scheduler", "detokenizer")
            if f"{name}_process" in " ".join(child.cmdline())
        }

    def connect(self, data=b"", receive_buffer=None):
        """A socket to it, on which `data` was sent."""
        host, port = self.url.removeprefix("http://").split(":")
        made = socket.socket()
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect((host, int(port)))
        made.sendall(data)
        return made

    def state(self):
        return self.http.get("/server_info").json()["state"]

    def until(self, **values):
        """Until the state is so; the suite's timeout ends it."""
        while not values.items() <= self.state().items():
            pass

    def until_nothing_is_held(self):
        self.until(running=0, waiting=0, used=0)

    def until_status(self, path, status):
        while (answer := self.http.get(path)).status_code != status:
            pass
        return answer

    def aborted(self):
        """How many sequences ended because somebody left."""
        lines = self.http.get("/metrics").text.splitlines()
        (line,) = [x for x in lines if x.startswith("phloem_num_aborted_requests_total")]
        return float(line.split()[-1])

    def memory(self):
        """Bytes that the API process has."""
        return psutil.Process(self.process.pid).memory_info().rss

    def wait_end(self):
        """Its exit status; the log is whole then."""
        status = self.process.wait(30)
        self._server.stop()
        return status

    @contextmanager
    def standing_still(self, name):
        """While a process does nothing."""
        self.processes[name].suspend()
        try:
            yield
        finally:
            self.processes[name].resume()


@contextmanager
def serving(model, engine=None, **http):
    args = ServerArgs(model=model, max_running_requests=16, **(engine or {}))
    options = HttpArgs(port=0, served_model_name=NAME, log_requests="off", **http)
    with running_server(args, options) as server:
        yield Running(server)


def sent(path, body):
    """A request as bytes: its head, and its body."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode(), content


def read_until(connection, mark):
    """What comes up to a mark, and a bit more perhaps."""
    received = b""
    while mark not in received:
        part = connection.recv(1 << 16)
        assert part, f"the answer ended before {mark!r}: {received[-500:]!r}"
        received += part
    return received


def reset(connection):
    """Close it as a machine does that is switched off: what comes is not wanted."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
