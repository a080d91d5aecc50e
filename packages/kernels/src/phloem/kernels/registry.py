"""Which kernel backends exist, which of them can run here, and how to get one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phloem.kernels import cpu_backend, flashinfer_backend, triton_backend
from phloem.kernels.base import Ops
from phloem.kernels.torch_backend import TorchOps


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """Whether a backend can run on this machine."""

    name: str
    usable: bool
    reason: str
    """Why it can not, or what it runs on."""


@dataclass(frozen=True, slots=True)
class _Backend:
    make: Callable[..., Ops]
    probe: Callable[[], BackendStatus]
    options: frozenset[str] = frozenset()
    """What `make` may be told."""


AUTO = "auto"
"""The name for `cpu` where it can run, and `torch` elsewhere."""


def get_ops(name: str = "torch", *, threads: int | None = None, isa: str | None = None) -> Ops:
    """Make the op table of a backend. `auto` warns when it has to take torch.

    `threads` and `isa` are options of `cpu`: how many threads compute (None: one for each core that
    this process may use), for which instruction set (None: the best that the processor has).

    Raises:
        ValueError: if no backend has this name, or the backend lacks an option that is given.
        RuntimeError: if the backend cannot run on this machine, with the reason.
    """
    given = {"threads": threads, "isa": isa}
    options = {option: value for option, value in given.items() if value is not None}
    if name == AUTO:
        return _make_automatic(options)
    backend = _BACKENDS.get(name)
    if backend is None:
        known = ", ".join((*_BACKENDS, AUTO))
        raise ValueError(f"unknown kernel backend {name!r}: known are {known}")
    strange = sorted(options.keys() - backend.options)
    if strange:
        raise ValueError(f"kernel backend {name!r} has no option {strange[0]!r}: leave it out")
    status = backend.probe()
    if not status.usable:
        raise RuntimeError(f"kernel backend {name!r} cannot run here: {status.reason}")
    return backend.make(**options)


def automatic_backend() -> str:
    """What `auto` is here, as far as can be told without compiling."""
    return "cpu" if _BACKENDS["cpu"].probe().usable else "torch"


def available_backends() -> tuple[BackendStatus, ...]:
    """The state of every known backend, in order of registration."""
    return tuple(backend.probe() for backend in _BACKENDS.values())


def _make_automatic(options: dict[str, Any]) -> Ops:
    try:
        return get_ops("cpu", **options)
    except RuntimeError as error:
        warnings.warn(
            f"computing with torch, which is slower than the native kernels: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return get_ops("torch")


_BACKENDS: dict[str, _Backend] = {
    "torch": _Backend(
        make=TorchOps, probe=lambda: BackendStatus("torch", True, TorchOps.describe())
    ),
    "cpu": _Backend(
        make=cpu_backend.make_ops,
        probe=lambda: BackendStatus("cpu", *cpu_backend.probe()),
        options=frozenset({"threads", "isa"}),
    ),
    "triton": _Backend(
        make=triton_backend.make_ops,
        probe=lambda: BackendStatus("triton", *triton_backend.probe()),
    ),
    "flashinfer": _Backend(
        make=flashinfer_backend.make_ops,
        probe=lambda: BackendStatus("flashinfer", *flashinfer_backend.probe()),
    ),
}
