"""What surrounds every request: it has a name and is counted, and whatever happens is answered.

The outermost layer that is ours, as plain ASGI: Starlette's own would add a task to each response.
In a request's scope, `state["request_id"]` is its name, and `state["response_headers"]` a list of
headers that its answer will have whatever it is, for any layer to add to before it begins. Then
`state["status"]` is there too.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phloem.server.http.anthropic.errors import MESSAGES, REQUEST_ID
from phloem.server.http.error_answers import error_answer
from phloem.server.http.errors import ABORTED
from phloem.server.http.metrics import Metrics
from phloem.server.http.request_id import HEADER, request_id_of
from phloem.server.observability.watch import RequestWatch, Watcher, watching


class Surround:
    """Middleware around the whole app."""

    def __init__(self, app: ASGIApp, metrics: Metrics, watchers: Sequence[Watcher] = ()) -> None:
        self._app = app
        self._metrics = metrics
        self._watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, as an ASGI app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with watching(scope, self._watchers) as watch:
            await self._pass_on(watch, scope, receive, send)

    async def _pass_on(
        self, watch: RequestWatch, scope: Scope, receive: Receive, send: Send
    ) -> None:
        status: int | None = None
        id = request_id_of(scope["headers"])
        names = (HEADER, REQUEST_ID) if scope["path"].startswith(MESSAGES) else (HEADER,)
        headers = [(name, id.encode()) for name in names]
        scope.setdefault("state", {}).update(request_id=id, response_headers=headers)

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = scope["state"]["status"] = message["status"]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if status is not None:
                # Too late to say so: the connection is cut, which tells the client.
                raise
            await error_answer(error, scope["path"])(scope, receive, noting)
        finally:
            # Without an answer: the client had left.
            watch.endpoint, watch.status = _endpoint(scope), status or ABORTED
            self._metrics.count_response(watch.endpoint, watch.status)


def _endpoint(scope: Scope) -> str:
    """The route's path; one name for all others, since anybody can ask for any number of them."""
    route = scope.get("route")
    return "other" if route is None else route.path
