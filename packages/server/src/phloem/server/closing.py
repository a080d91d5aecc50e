"""What is closed at the end of an `async with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

C = TypeVar("C", bound="AsyncClosing")


class AsyncClosing(ABC):
    """Gives itself to the block, and is closed when the block ends, however it does."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what it has."""

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
