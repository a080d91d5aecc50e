"""lm-eval scores the default model over HTTP as by transformers; see `benchmarks.lm_eval`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
LIMIT = 4
"""Questions of each task, of which the benchmark asks all."""


@pytest.fixture(scope="module", autouse=True)
def _from_the_root():
    """The tasks name their data from there."""
    for package in ("lm_eval", "accelerate", "tenacity"):
        pytest.importorskip(
            package, reason=f"{package} is missing, which lm-eval needs: install lm-eval[hf,api]"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[1])
        yield


@pytest.fixture(scope="module")
def wanted(smollm2):
    from benchmarks.lm_eval import of_transformers

    return of_transformers(smollm2, LIMIT)


@pytest.fixture(scope="module")
def server(serve, smollm2):
    return serve(smollm2, quantization="none")


@pytest.mark.parametrize("tokenized", [True, False])
def test_scores_over_http_are_those_of_transformers(server, smollm2, wanted, tokenized):
    """Case SA-10, which loglikelihoods of lm-eval are asked by."""
    from benchmarks.lm_eval import ANSWERS, CHOICES, PAGES, furthest, of_server

    found = of_server(server.url, "tiny", smollm2, tokenized=tokenized, limit=LIMIT)
    for task in (CHOICES, PAGES):
        assert furthest(found.loglikelihoods(task), wanted.loglikelihoods(task)) < 1e-3
    assert found.texts(ANSWERS) == wanted.texts(ANSWERS)
    assert found.of[CHOICES] == wanted.of[CHOICES]
    assert found.of[ANSWERS] == wanted.of[ANSWERS]
    assert 0 < wanted.of[CHOICES] <= 1, "the questions are none that tell nothing"
