"""Which weights what is cached was computed with, as part of the namespace of each request.

Two versions share nothing, so that a change of weights leaves no prefix behind that could be used
wrongly, and going back to a version finds again what is still there of it.
"""

from __future__ import annotations

from phloem.scheduler.request import Request

FIRST_VERSION = "default"
"""The weights that an engine starts with; their namespaces are as they were given."""

Namespace = tuple[object, ...]

_MARK = b"phloem.weights"


class WeightVersion:
    """The version of the weights that a runner has now.

    Attributes:
        name: what it is called.
    """

    def __init__(self) -> None:
        self.name = FIRST_VERSION

    def namespace(self, given: Namespace) -> Namespace:
        """The namespace under this version of what a caller gave.

        Raises:
            ValueError: it looks as if it had a version already.
        """
        if given[:1] == (_MARK,):
            raise ValueError(f"a namespace may not begin with {_MARK!r}, which marks weights")
        return given if self.name == FIRST_VERSION else (_MARK, self.name, given)

    def move(self, request: Request) -> None:
        """Let a request that holds no memory look under this version from now on."""
        namespace = request.namespace
        if namespace[:1] == (_MARK,):
            _, _, given = namespace
            assert isinstance(given, tuple), f"{namespace!r} was not made here"
            namespace = given
        request.namespace = self.namespace(namespace)
        request.peeked = (-1, 0)
