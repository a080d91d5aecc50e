"""Who may ask for what: API keys, and the middleware that lets their callers in.

Owns which paths are open to all, which want a key and which the admin key. A path that nobody
named wants a key, so that a new endpoint is closed until somebody opens it. Without any key the
server trusts everybody. A key is never logged nor answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Receive, Scope, Send

from phloem.server.http.errors import ApiError
from phloem.server.http.limits import Limiter
from phloem.server.http.tenancy import Caller, trusted_caller
from phloem.server.keys import ADMIN, UNLIMITED, Key, KeyRing
from phloem.server.probe_paths import METRICS, OPEN_PATHS

ADMIN_PATHS = frozenset(
    {"/flush_cache", "/pause_generation", "/continue_generation", "/update_weight_version"}
)
"""What concerns all callers."""
PAGE, PAGE_DATA = "/ui", "/ui/api"
"""The live page is open, since a browser cannot give a key for it; what it shows is not."""

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Access:
    """The keys of a server, and what they open."""

    keys: KeyRing
    share_cache: bool = False
    """Whether callers find prefixes that others have cached."""
    metrics: str = "key"
    """Who may read `/metrics`: "open" (all), "key" or "admin"."""

    @property
    def trusting(self) -> bool:
        """Whether there are no keys, so that everybody may do everything."""
        return not self.keys.has_callers and not self.keys.has_admin

    def caller(self, path: str, headers: Headers) -> Caller:
        """Who asks for `path` with `headers`, whose names are lower case.

        Raises:
            ApiError: 401 without a key that is known, 403 where the admin key is wanted.
        """
        authorization, secrets = _credentials(headers)
        if self.trusting:
            return trusted_caller(authorization)
        if path in OPEN_PATHS or (_within(path, PAGE) and not _within(path, PAGE_DATA)):
            return Caller()
        wants_admin = path in ADMIN_PATHS or _within(path, PAGE_DATA)
        if path == METRICS:
            if self.metrics == "open":
                return Caller()
            wants_admin = self.metrics == ADMIN
        return self._known(path, authorization, secrets, wants_admin)

    def _known(
        self, path: str, authorization: bytes | None, secrets: Sequence[bytes], wants_admin: bool
    ) -> Caller:
        known = [key for key in map(self.keys.find, secrets) if key is not None]
        # The admin key counts, whichever header has it.
        key = min(known, key=lambda key: not key.admin, default=None)
        if key is None and not self.keys.has_callers and not wants_admin:
            # Only an admin key is set: what does not need it is open.
            return replace(trusted_caller(authorization), admin=False)
        if key is None:
            raise _unknown(given=bool(secrets))
        if wants_admin and not key.admin:
            raise admin_wanted(path, self.keys.has_admin)
        return self.caller_with(key)

    def caller_with(self, key: Key) -> Caller:
        """The caller whose key is `key`."""
        id = key.id
        return Caller(id, key.name, key.admin, () if self.share_cache else (id,), id, key.limits)


def admin_wanted(what: str, has_admin: bool = True) -> ApiError:
    """The refusal of what only the admin key may do."""
    cure = "send that" if has_admin else "start the server with --admin-api-key to have one"
    return ApiError(f"{what} needs the admin key: {cure}", 403, code="admin_key_required")


def _unknown(given: bool) -> ApiError:
    message = (
        "the API key is not known here: check it, or ask who runs this server for one"
        if given
        else "no API key was given: send it as Authorization: Bearer KEY, or as x-api-key: KEY"
    )
    return ApiError(message, 401, code="invalid_api_key")


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _credentials(headers: Headers) -> tuple[bytes | None, list[bytes]]:
    """The header Authorization, and what may be a key."""
    authorization: bytes | None = None
    secrets = []
    for name, value in headers:
        if name == b"authorization":
            authorization = value
            scheme, _, secret = value.partition(b" ")
            if scheme.lower() == b"bearer" and secret.strip():
                secrets.append(secret.strip())
        elif name == b"x-api-key" and value:
            secrets.append(value)
    # Each costs a hash, and clients have one, or both headers.
    return authorization, secrets[:2]


class Gate:
    """Middleware that tells who asks, or refuses, before anything of a body is read; and that tells
    the limiter when a request is over."""

    def __init__(
        self, app: ASGIApp, access: Access, max_body_bytes: int, limiter: Limiter | None = None
    ) -> None:
        self._app = app
        self._limiter = limiter or Limiter(UNLIMITED)
        self._access = access
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, as an ASGI app.

        Raises:
            ApiError: 401 or 403, or 413 for a body that says that it is too large.
        """
        if scope["type"] == "http":
            headers = scope["headers"]
            caller = self._access.caller(scope["path"], headers)
            scope.setdefault("state", {})["caller"] = caller
            check_length(headers, self._max_body_bytes)
        try:
            await self._app(scope, receive, send)
        finally:
            self._limiter.end(scope)


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a body that says that it is too large.

    Raises:
        ApiError: 413.
    """
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limit:
            raise ApiError(
                f"the body has more than {limit} bytes, which is the limit here",
                413,
                code="request_too_large",
            )
