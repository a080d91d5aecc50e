"""Which requests are running, and what they are called: by the engine and by who sent them.

Owns the names. Ids are one space for each tenant, so that no tenant can see or take those of
another; in the engine, where they are one space for all, a request's name tells both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from phloem.server.frontend import EVERYBODY, Everybody, GenerationRequest

_T = TypeVar("_T")
_BETWEEN = "\0"
"""In no id or tenant that the API takes."""


def engine_name(rid: str, tenant: str | None) -> str:
    """What the engine calls a request."""
    return rid if tenant is None else f"{tenant}{_BETWEEN}{rid}"


class Running(Generic[_T]):
    """Something for each running request, by the engine's names."""

    def __init__(self) -> None:
        self._all: dict[str, _T] = {}
        self._tenants: dict[str, list[str | None]] = {}
        """Whose requests have an id."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_T]:
        return iter(self._all.values())

    def check_free(self, request: GenerationRequest) -> str:
        """What the engine may call a request.

        Raises:
            ValueError: its tenant has another of that id.
        """
        name = engine_name(request.rid, request.tenant)
        if name in self._all:
            raise ValueError(f"request id {request.rid!r} is in use: give each request its own")
        return name

    def add(self, request: GenerationRequest, what: _T) -> None:
        """Note a request, which `check_free` has let pass."""
        self._all[engine_name(request.rid, request.tenant)] = what
        self._tenants.setdefault(request.rid, []).append(request.tenant)

    def get(self, name: str) -> _T | None:
        """What there is of one."""
        return self._all.get(name)

    def pop(self, name: str) -> _T | None:
        """The same, and forget it."""
        what = self._all.pop(name, None)
        if what is not None:
            tenant, between, rid = name.rpartition(_BETWEEN)
            tenants = self._tenants[rid]
            tenants.remove(tenant if between else None)
            if not tenants:
                del self._tenants[rid]
        return what

    def clear(self) -> list[_T]:
        """Forget all; what there was of them."""
        all = list(self._all.values())
        self._all.clear()
        self._tenants.clear()
        return all

    def named(self, rid: str | None, tenant: str | Everybody | None = EVERYBODY) -> dict[str, _T]:
        """Those of an id, or of all (None), of a tenant or of everybody, by their names."""
        if rid is not None:
            tenants: Iterable[str | None] = self._tenants.get(rid, ())
            if tenant is not EVERYBODY:
                tenants = [each for each in tenants if each == tenant]
            names = [engine_name(rid, each) for each in tenants]
        elif tenant is EVERYBODY:
            names = list(self._all)
        else:
            names = [
                engine_name(rid, each)
                for rid, tenants in self._tenants.items()
                for each in tenants
                if each == tenant
            ]
        return {name: self._all[name] for name in names}
