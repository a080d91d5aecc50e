from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.scheduler.simulation import CostModel, load_cost_model
from phloem.server.bench.fitting import Observation, Work, fit, prefill_work
from phloem.server.bench.probes import ProbePlan, Prober
from phloem.server.streamed_answer import Answer

TRUE = CostModel(6e-3, 4e-5, 2e-9, 3e-5, 5e-8, 2e-3)


def seconds(work, model=TRUE):
    return sum(getattr(model, name) * getattr(work, name) for name in model.as_dict())


def observations(model=TRUE, noise=0.0):
    rng = np.random.default_rng(0)
    works = [
        *(prefill_work(n, cached, 512) for n in (32, 256, 1024) for cached in (0, 1000, 8000)),
        *(
            Work(1, decode_row=rows, decode_context=rows * context)
            for rows in (1, 4, 16, 64)
            for context in (64, 1024, 8192)
        ),
    ]
    return [
        Observation(f"probe {i}", seconds(work, model) * (1 + noise * rng.standard_normal()), work)
        for i, work in enumerate(works)
    ]


def test_a_cost_model_is_found_again_from_what_it_says():
    found = fit(observations())
    for name, value in TRUE.as_dict().items():
        assert getattr(found.cost_model, name) == pytest.approx(value, rel=1e-6), name
    assert found.mean_error < 1e-9


def test_noise_moves_the_fit_a_little():
    found = fit(observations(noise=0.02))
    assert 0 < found.mean_error < 0.03
    for name in ("step", "prefill_token", "decode_context"):
        assert getattr(found.cost_model, name) == pytest.approx(getattr(TRUE, name), rel=0.15)


@settings(max_examples=50)
@given(st.lists(st.floats(0.5, 2.0), min_size=21, max_size=21))
def test_nothing_gets_negative_whatever_was_measured(factors):
    distorted = [
        Observation(o.probe, o.seconds * factor, o.work)
        for o, factor in zip(observations(), factors, strict=True)
    ]
    found = fit(distorted)  # a CostModel has no negative values
    plain = fit(distorted[:9])
    assert found.cost_model.step > 0
    assert (plain.cost_model.decode_row, plain.cost_model.decode_context) == (0, 0)


def test_no_fit_of_the_same_form_has_less_error():
    """Least squares over relative errors, against many changed fits."""
    distorted = observations(noise=0.2)
    found = fit(distorted)

    def error(model):
        return sum((seconds(o.work, model) / o.seconds - 1) ** 2 for o in distorted)

    values = found.cost_model.as_dict()
    for name in values:
        for factor in (0.9, 0.99, 1.01, 1.1):
            changed = CostModel(**{**values, name: values[name] * factor})
            assert error(changed) >= error(found.cost_model)


def test_a_long_prompt_takes_several_steps():
    assert prefill_work(1025, 0, 512) == Work(3, 1025, 1025 * 1026 / 2, request=1)


def test_the_simulator_reads_what_was_written(tmp_path):
    path = tmp_path / "fit.json"
    found = fit(observations())
    path.write_text(json.dumps(found.as_dict()))
    assert load_cost_model(str(path)) == found.cost_model


def test_nothing_measured_gives_no_model():
    with pytest.raises(ValueError, match="nothing can be fitted"):
        fit([])


class Words:
    """Texts of so many words, in place of a tokenizer's."""

    def text(self, tokens, *key):
        return f" {'-'.join(map(str, key))}" * tokens


class ModelClient:
    """Answers in the time that a cost model says, by a clock of its own; everybody at once."""

    def __init__(self, model):
        self.model = model
        self.now = 0.0
        self._cached = set()
        self._together = []

    async def ask(self, prompt, conversation):
        words = tuple(prompt.split())
        cached = max((n for n in range(len(words)) if words[:n] in self._cached), default=0)
        tokens = conversation.max_tokens
        work = prefill_work(len(words) - cached, cached, 512)
        self._together.append(len(words))
        await asyncio.sleep(0)  # the others of a probe come
        at_once = len(self._together)
        times = [seconds(work, self.model)]
        for i in range(1, tokens):
            step = Work(1, decode_row=at_once, decode_context=at_once * (len(words) + i))
            times.append(times[-1] + seconds(step, self.model))
        await asyncio.sleep(0)
        self._together.clear()
        self._cached.update(words[:n] for n in range(len(words) + 1))
        return Answer(
            text="x" * tokens,
            arrivals=tuple(times),
            prompt_tokens=len(words),
            completion_tokens=tokens,
            cached_tokens=cached,
            finish_reason="length",
        )


def probed(model, client=None, **plan):
    plan = ProbePlan(**{"longest": 128, "at_once": 4, "repeats": 1, **plan})
    prober = Prober(client or ModelClient(model), Words(), plan, clock=lambda: 0.0)
    seen = []
    return asyncio.run(prober.run(seen.append)), seen


def test_probes_of_a_server_that_keeps_to_a_model_find_that_model():
    model = CostModel(6e-3, 4e-5, 2e-7, 3e-4, 5e-7)
    found = fit(probed(model)[0])
    assert found.mean_error < 0.01
    for name in ("step", "prefill_token", "decode_row"):
        assert getattr(found.cost_model, name) == pytest.approx(getattr(model, name), rel=0.05)


def test_of_each_probe_the_median_counts():
    class Disturbed(ModelClient):
        """Some answers take ten times as long."""

        asked = count()

        async def ask(self, prompt, conversation):
            self.model = CostModel(6e-2 if next(self.asked) % 3 == 2 else 6e-3, 4e-5)
            return await super().ask(prompt, conversation)

    medians, seen = probed(TRUE, Disturbed(TRUE), repeats=5)
    assert len(seen) == 5 * len(medians)
    for observation in medians:
        of_probe = sorted(o.seconds for o in seen if o.probe == observation.probe)
        assert observation.seconds == of_probe[2]


def test_a_request_that_fails_ends_the_probes():
    class Failing(ModelClient):
        async def ask(self, prompt, conversation):
            return Answer(error="no room")

    with pytest.raises(RuntimeError, match="a probe failed: no room"):
        probed(TRUE, Failing(TRUE))


def test_where_few_tokens_come_at_once_more_are_asked_for():
    """So they do from a server without a model to a client that is held up."""

    class Hasty(ModelClient):
        async def ask(self, prompt, conversation):
            answer = await super().ask(prompt, conversation)
            if conversation.max_tokens in (1, 512):
                return answer
            return replace(answer, arrivals=(1.0,) * len(answer.arrivals))

    for observation in probed(TRUE, Hasty(TRUE))[0]:
        assert observation.seconds > 0


def test_answers_that_come_all_at_once_are_no_measurement():
    class AtOnce(ModelClient):
        async def ask(self, prompt, conversation):
            tokens = conversation.max_tokens
            return Answer("x", (1.0,) * tokens, prompt_tokens=9, completion_tokens=tokens)

    with pytest.raises(RuntimeError, match="too much at once"):
        probed(TRUE, AtOnce(TRUE))
