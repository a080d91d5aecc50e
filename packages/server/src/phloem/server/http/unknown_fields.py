"""Fields of a request that no endpoint knows, where they are let pass: the client is told, and the
operator now and then.

Owns the header and the line in the log. Which fields are unknown is `phloem.server.http.body`'s.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence

from starlette.types import Scope

logger = logging.getLogger(__name__)

HEADER = b"x-phloem-warnings"
SECONDS_BETWEEN_LINES = 60.0
_MOST_NAMES = 16
_LONGEST_NAME = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
"""What could end a header or a line."""


class UnknownFields:
    """Tells of fields that were passed over; one for each app."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_until = 0.0
        self._untold = 0
        """Requests with such fields since the last line."""

    def tell(self, scope: Scope, names: Sequence[str]) -> None:
        """Name fields in a header of the request's answer, and at most once a minute in the log."""
        shown = ", ".join(_UNFIT.sub("?", name[:_LONGEST_NAME]) for name in names[:_MOST_NAMES])
        state = scope.setdefault("state", {})
        state.setdefault("response_headers", []).append((HEADER, shown.encode()))
        self._untold += 1
        now = self._clock()
        if now >= self._quiet_until:
            self._quiet_until = now + SECONDS_BETWEEN_LINES
            logger.warning(
                "%d requests since the last such line had fields that no endpoint knows, which "
                "were passed over: lately %s; --strict-fields refuses them",
                self._untold,
                shown,
            )
            self._untold = 0
