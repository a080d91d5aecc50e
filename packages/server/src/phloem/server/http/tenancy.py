"""Who asks: the caller of a request, and what is kept apart from that of other callers.

Owns what a caller is, where its cached prefixes are and whose share of the queue it takes. Who may
be a caller is `phloem.server.http.auth`'s affair, which puts one in the scope of each request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request
from starlette.types import Scope

from phloem.server.http.errors import ApiError
from phloem.server.http.protocol import MAX_TENANT_CHARACTERS
from phloem.server.keys import UNLIMITED, KeyLimits

Namespace = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    key_id: str | None = None
    """Which API key it came with; None: the server has no keys, or the endpoint wants none."""
    name: str = "anonymous"
    """What operators call it."""
    admin: bool = False
    """Whether it may do what concerns all callers."""
    namespace: Namespace = ()
    """Where its cached prefixes are, apart from those of other namespaces."""
    tenant: str | None = None
    """Whose share of the queue its requests take; None: the request says, or else its salt."""
    limits: KeyLimits = UNLIMITED
    """What it may ask for, where that differs from the server's limits."""


def caller_of(request: Request) -> Caller:
    """Who sent `request`."""
    return caller_in(request.scope)


def caller_in(scope: Scope) -> Caller:
    """Who sent the request that has this scope."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    if caller is not None:
        return caller
    headers = dict(scope["headers"])
    return trusted_caller(headers.get(b"authorization"))


def trusted_caller(credentials: bytes | None) -> Caller:
    """The caller of a server without keys, which believes what it is told.

    Credentials, which a gateway in front may have checked, name the tenant; of them a hash is kept.
    """
    tenant = hashlib.sha256(credentials).hexdigest()[:16] if credentials else None
    return Caller(admin=True, tenant=tenant)


def namespace_of(caller: Caller, cache_salt: str | None) -> Namespace:
    """Where a request's cached prefixes are; no salt is not the same as an empty one.

    Callers with namespaces of their own never share: with one, its length is always the same.
    """
    if caller.namespace:
        return (*caller.namespace, cache_salt)
    return () if cache_salt is None else (cache_salt,)


def owner_of(caller: Caller) -> str:
    """For whom what is compiled is kept; callers that share their cached prefixes share that."""
    return "" if not caller.namespace else str(caller.namespace[0])


class Asked(Protocol):
    """A request's body, as far as it says for whom it is."""

    tenant: str | None


def tell_tenant(asked: Asked, caller: Caller) -> None:
    """Name the caller as the request's tenant, where it is known.

    Raises:
        ApiError: the request names another, which would give one key many shares, or its name is
            too long.
    """
    tenant = asked.tenant
    if caller.tenant is not None:
        if tenant is not None:
            raise ApiError(
                "tenant is given beside an API key, which tells the tenant itself: leave it out",
                param="tenant",
            )
        asked.tenant = caller.tenant
    elif tenant is not None and len(tenant) > MAX_TENANT_CHARACTERS:
        raise ApiError(
            f"tenant has {len(tenant)} characters and may have {MAX_TENANT_CHARACTERS}: shorten it",
            param="tenant",
        )
