"""What a request is called in answers, logs and traces: the client's own name for it, or ours."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from phloem.server.http.errors import ApiError

HEADER = b"x-request-id"
_FIT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""What can stand in a line of a log as it is."""


MAX_RID_CHARACTERS = 256


def checked_rids(given: str | Sequence[str], count: int, what: str) -> list[str]:
    """A client's own ids for the `count` sequences (or `what` they are) that it asks for.

    Raises:
        ApiError: there are more or fewer, two are the same, or one cannot stand in a log.
    """
    rids = [given] if isinstance(given, str) else list(given)
    if len(rids) != count:
        raise ApiError(f"{len(rids)} ids were given for {count} {what}", param="rid")
    for rid in rids:
        if not 1 <= len(rid) <= MAX_RID_CHARACTERS or not rid.isprintable():
            raise ApiError(
                f"rid has an id of {len(rid)} characters: give 1 to {MAX_RID_CHARACTERS}, all of "
                "them printable, or leave it out",
                param="rid",
            )
    if len(set(rids)) < len(rids):
        raise ApiError(
            "rid has the same id twice: give each sequence its own, or leave it out", param="rid"
        )
    return rids


def request_id_of(headers: list[tuple[bytes, bytes]]) -> str:
    """The client's name for its request where that is short and plain, else a new one."""
    for name, value in headers:
        if name == HEADER:
            if _FIT.fullmatch(value):
                return value.decode()
            break
    return f"req_{uuid.uuid4().hex}"
