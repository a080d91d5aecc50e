"""Finding a server's model before any process is started for it.

So that a model that is not there is one sentence, at once, and a conversion shows its progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from phloem.model_runner.sources import resolve_model
from phloem.server.config import ServerArgs
from phloem.server.scripted_model import SCRIPTED, load_scripted_model

if TYPE_CHECKING:
    from phloem.model_runner.sources import Progress


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model that is on this machine."""

    name: str
    """What it is called."""
    args: ServerArgs
    """The engine's options, the model in them no longer to be searched for."""
    tokenizer_folder: Path


def locate_model(args: ServerArgs, progress: Progress | None = None) -> LocatedModel:
    """Find the model of `args`; downloads and converts it where that is needed.

    Raises:
        ValueError: there is no such model.
    """
    if args.model.startswith(SCRIPTED):
        scripted = load_scripted_model(args)
        return LocatedModel(args.model, args, scripted.tokenizer_folder)
    folder = resolve_model(
        args.model,
        cache_dir=args.cache_dir,
        offline=args.offline,
        float_weights=False,
        progress=progress,
    )
    return LocatedModel(folder.name, replace(args, model=str(folder.path)), folder.path)
