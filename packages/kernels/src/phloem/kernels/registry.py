"""Which kernel backends exist, which of them can run here, and how to get one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    make: Callable[[], Ops]
    probe: Callable[[], BackendStatus]


def get_ops(name: str = "torch") -> Ops:
    """Make the op table of a backend.

    Raises:
        ValueError: if no backend has this name.
        RuntimeError: if the backend cannot run on this machine, with the reason.
    """
    backend = _BACKENDS.get(name)
    if backend is None:
        raise ValueError(f"unknown kernel backend {name!r}: known are {', '.join(_BACKENDS)}")
    status = backend.probe()
    if not status.usable:
        raise RuntimeError(f"kernel backend {name!r} cannot run here: {status.reason}")
    return backend.make()


def available_backends() -> tuple[BackendStatus, ...]:
    """The state of every known backend, in order of registration."""
    return tuple(backend.probe() for backend in _BACKENDS.values())


_BACKENDS: dict[str, _Backend] = {
    "torch": _Backend(
        make=TorchOps, probe=lambda: BackendStatus("torch", True, TorchOps.describe())
    ),
}
