"""`GET /ui`: the live page, as files that come with the package.

Owns how they are served: from memory, with a policy under which nothing but these files runs and
nothing is loaded from elsewhere. The files are plain modules and styles in `phloem/server/ui`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from phloem.server.http.service import Service

FOLDER = Path(__file__).parent.parent / "ui"
INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, but asked for each time: a new version of the server has a new page at once.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A file and what is sent with it."""

    content: bytes
    media_type: str
    etag: str


def load_pages() -> dict[str, Page]:
    """All files of the page, by their paths below `/ui/`."""
    return {file.relative_to(FOLDER).as_posix(): page for file, page in _load()}


def _load() -> Iterator[tuple[Path, Page]]:
    for file in FOLDER.rglob("*.*"):
        if media_type := _TYPES.get(file.suffix[1:]):
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:32]
            yield file, Page(content, media_type, f'"{digest}"')


def add_ui(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    pages = load_pages()

    @app.get("/ui", include_in_schema=False)
    async def without_slash() -> Response:
        # Relative, so that a path that a proxy puts in front stays.
        return Response(status_code=307, headers={"Location": "ui/"})

    @app.head("/ui/{path:path}", include_in_schema=False)
    @app.get("/ui/{path:path}", include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        found = pages.get(path or INDEX)
        if found is None:
            raise HTTPException(404, "there is no such file")
        headers = _HEADERS | {"ETag": found.etag}
        if _has(request.headers.get("if-none-match"), found.etag):
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media_type)


def _has(tags: str | None, etag: str) -> bool:
    """Whether a client has what it asks for; proxies that compress make an etag a weak one."""
    given = (tag.strip().removeprefix("W/") for tag in (tags or "").split(","))
    return etag in given
