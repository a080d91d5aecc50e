"""What the endpoints take, for `/openapi.json` and `/docs`: from the structs that check it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI

_REF = "#/components/schemas/{name}"


def body_of(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """A route's `openapi_extra`, where its body is a `shape`."""
    schema = {"$ref": _REF.format(name=shape.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe_bodies(app: FastAPI, shapes: Sequence[type[msgspec.Struct]]) -> None:
    """Put the shapes that `body_of` refers to into the app's description."""
    routes_only = app.openapi

    def openapi() -> dict[str, Any]:
        described = routes_only()
        _, schemas = msgspec.json.schema_components(shapes, ref_template=_REF)
        described.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        return described

    app.openapi = openapi  # type: ignore[method-assign]
