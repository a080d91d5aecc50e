"""The HTTP API: OpenAI's endpoints, the native ones, and those for operating a server.

`create_app` puts it in front of any `phloem.server.frontend.Frontend`.
"""

from phloem.server.http.app import create_app

__all__ = ["create_app"]
