"""Accuracy over HTTP: lm-eval's scores of a server beside those of transformers, same weights.

Both are asked through lm-eval, the server by its `local-completions` with prompts as tokens and as
text, on three small tasks in `data/lm_eval`: choices (forty questions), pages (perplexity of texts)
and answers (a few words, greedily). Run it from the root of the repository.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, run

TASKS = Path(__file__).parent / "data" / "lm_eval"
CHOICES, PAGES, ANSWERS = NAMES = ("phloem_choices", "phloem_pages", "phloem_answers")
_SCORES = {
    CHOICES: "acc,none",
    PAGES: "word_perplexity,none",
    ANSWERS: "exact_match,stripped",
}
_LENGTH = 2048
"""Tokens that are looked at at once."""


class Scores:
    """What a model got, and what it said of each question."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.of = {task: float(found["results"][task][name]) for task, name in _SCORES.items()}
        self._samples = found["samples"]

    def loglikelihoods(self, task: str) -> list[float]:
        """Of each choice of each question, or of each page."""
        answers = [each for sample in self._ordered(task) for each in sample["filtered_resps"]]
        return [each[0] if isinstance(each, list | tuple) else each for each in answers]

    def texts(self, task: str) -> list[str]:
        """What was generated for each question."""
        return [text for sample in self._ordered(task) for text in sample["filtered_resps"]]

    def _ordered(self, task: str) -> Sequence[Mapping[str, Any]]:
        return sorted(self._samples[task], key=lambda sample: sample["doc_id"])


def scores(
    model: str, arguments: Mapping[str, Any], limit: int | None = None, batch_size: int = 1
) -> Scores:
    """Have a model scored by lm-eval on all three tasks.

    Args:
        model: what lm-eval calls the kind of model.
        arguments: for it.
        limit: questions of each task; None: all.
        batch_size: of requests that are sent together.
    """
    # There is nothing to load from elsewhere, and trying would take minutes.
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model,
        dict(arguments),
        list(NAMES),
        limit=limit,
        batch_size=batch_size,
        device="cpu",
        bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
    )
    assert found is not None, "only other ranks of a distributed run get nothing"
    return Scores(found)


def of_transformers(folder: Path, limit: int | None = None) -> Scores:
    """The scores of transformers, in float32."""
    arguments = {"pretrained": str(folder), "dtype": "float32", "max_length": _LENGTH}
    return scores("hf", arguments, limit)


def of_server(
    url: str, model: str, folder: Path, *, tokenized: bool, limit: int | None = None
) -> Scores:
    """The scores of a server, which is asked for tokens or texts."""
    arguments = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "tokenizer": str(folder),
        "tokenizer_backend": "huggingface",
        "tokenized_requests": tokenized,
        # One of its tokens lm-eval keeps for the output.
        "max_length": _LENGTH + 1,
        "num_concurrent": 4,
    }
    return scores("local-completions", arguments, limit)


def furthest(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest relative difference between loglikelihoods, which are not near 0."""
    assert len(found) == len(wanted)
    return max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(found, wanted))


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """Scores of each, and by how much the loglikelihoods differ from transformers'."""
    from phloem.model_runner.sources import resolve_model
    from phloem.server.background import running_server
    from phloem.server.config import ServerArgs

    folder = resolve_model(options.model).path
    wanted = of_transformers(folder, options.limit)
    figures: Figures = {f"{task} transformers": value for task, value in wanted.of.items()}
    for quantization in options.quantization:
        with running_server(ServerArgs(model=options.model, quantization=quantization)) as server:
            for tokenized in (True, False):
                found = of_server(
                    server.url, options.model, folder, tokenized=tokenized, limit=options.limit
                )
                name = f"{quantization}, {'tokens' if tokenized else 'text'}"
                say(f"{name}: {found.of}")
                figures |= {f"{task} {name}": value for task, value in found.of.items()}
                for task in (CHOICES, PAGES):
                    apart = furthest(found.loglikelihoods(task), wanted.loglikelihoods(task))
                    figures[f"{task} loglikelihoods apart {name}"] = apart
                pairs = zip(found.texts(ANSWERS), wanted.texts(ANSWERS), strict=True)
                figures[f"{ANSWERS} equal {name}"] = math.fsum(a == b for a, b in pairs)
    return figures


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--quantization", nargs="+", default=["none", "auto"])
    parser.add_argument("--limit", type=int, help="questions of each task")


if __name__ == "__main__":
    run(__doc__, measure, _options)
