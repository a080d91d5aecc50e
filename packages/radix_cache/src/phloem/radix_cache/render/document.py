"""A tree as one JSON object, compact, for a page that draws it."""

from __future__ import annotations

import json
from array import array
from typing import Any

from ..tier import Tier
from .snapshot import Snapshot, Space, View


def write(snapshot: Snapshot) -> str:
    """The object's fields:

    - `page_size`, `policy`
    - `sizes`: for each tier of the cache `{"evictable", "protected"}` in tokens
    - `namespaces`: a list of `{"namespace", "hidden", "nodes"}`; the first is the `repr` of the
      tuple. `nodes` is flat, depth first.

    A node has `id` (its place among all nodes), `parent` (an id, null at the top), `start` and
    `end` (positions), `first` (its first tokens), `hits`, `idle` (seconds since it was used),
    `priority`, and for each tier null or `{"locks", "evictable"}`. `hidden` stands where something
    below is not shown: `{"nodes", "tokens"}`.
    """
    document = {
        "page_size": snapshot.page_size,
        "policy": snapshot.policy,
        "sizes": {
            tier.name.lower(): {"evictable": evictable, "protected": protected}
            for tier, (evictable, protected) in zip(snapshot.tiers, snapshot.sizes, strict=True)
        },
        "namespaces": [_namespace(space, snapshot) for space in snapshot.spaces],
    }
    return json.dumps(document, separators=(",", ":"))


def _namespace(space: Space, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "namespace": repr(space.namespace),
        **_hidden(space.top),
        "nodes": [_node(view, snapshot) for view in space.nodes],
    }


def _node(view: View, snapshot: Snapshot) -> dict[str, Any]:
    above = view.parent
    return {
        "id": view.id,
        "parent": None if above is None or not above.depth else above.id,
        "start": view.start,
        "end": view.end,
        "first": array("i", view.data).tolist(),
        "hits": view.hits,
        "idle": round(max(snapshot.now - view.last_access, 0.0), 3),
        "priority": view.priority,
        **{tier.name.lower(): _copy(view, tier) for tier in snapshot.tiers},
        **_hidden(view),
    }


def _copy(view: View, tier: Tier) -> dict[str, Any] | None:
    locks = view.locks[tier]
    return None if locks is None else {"locks": locks, "evictable": not locks}


def _hidden(view: View) -> dict[str, Any]:
    if not view.hidden_nodes:
        return {}
    return {"hidden": {"nodes": view.hidden_nodes, "tokens": view.hidden_tokens}}
