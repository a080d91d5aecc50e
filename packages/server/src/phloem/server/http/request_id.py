"""What a request is called in answers, logs and traces: the client's own name for it, or ours."""

from __future__ import annotations

import re
import uuid

HEADER = b"x-request-id"
_FIT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""What can stand in a line of a log as it is."""


def request_id_of(headers: list[tuple[bytes, bytes]]) -> str:
    """The client's name for its request where that is short and plain, else a new one."""
    for name, value in headers:
        if name == HEADER:
            if _FIT.fullmatch(value):
                return value.decode()
            break
    return f"req_{uuid.uuid4().hex}"
