"""SGLang's names in `/generate`, in the engine's terms."""

from __future__ import annotations

import pytest

from phloem.server.http.errors import ApiError
from phloem.server.http.native_params import NativeParams, native_params
from phloem.server.http.protocol import GenerateRequest


def params(**fields):
    return native_params(GenerateRequest(text="a", **fields))


def test_nothing_asked_is_nothing_changed():
    assert params() == NativeParams(None, True, False, False)
    given = {"temperature": 0, "top_logprobs": 2}
    assert params(sampling_params=given) == NativeParams(given, True, False, False)
    assert params(return_logprob=False, logprob_start_len=-1, top_logprobs_num=0).sampling is None


def test_logprobs_become_the_engines():
    assert params(return_logprob=True) == NativeParams({"top_logprobs": 0}, True, False, True)
    asked = params(
        sampling_params={"n": 2}, return_logprob=True, top_logprobs_num=3, logprob_start_len=0
    )
    assert asked.sampling == {"n": 2, "top_logprobs": 3, "prompt_logprobs_from": 0}


def test_lists_are_for_each_prompt():
    asked = params(sampling_params={"n": 2}, return_logprob=[True, False])
    assert asked.sampling == [{"n": 2, "top_logprobs": 0}, {"n": 2}]
    asked = params(sampling_params=[{"n": 2}, {}], return_logprob=True, top_logprobs_num=1)
    assert asked.sampling == [{"n": 2, "top_logprobs": 1}, {"top_logprobs": 1}]


def test_what_stands_among_the_sampling_parameters_is_found():
    asked = params(
        sampling_params={"sampling_seed": 5, "skip_special_tokens": False, "no_stop_trim": True}
    )
    assert asked == NativeParams({"seed": 5}, False, True, False)
    assert params(skip_special_tokens=False, no_stop_trim=True).keep_stop


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs_num": 2}, "top_logprobs_num"),
        ({"logprob_start_len": 0}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"return_logprob": True, "sampling_params": {"top_logprobs": 1}}, "return_logprob"),
        (
            {
                "return_logprob": True,
                "logprob_start_len": 0,
                "sampling_params": {"prompt_logprobs_from": 1},
            },
            "logprob_start_len",
        ),
        ({"sampling_params": {"seed": 1, "sampling_seed": 2}}, "sampling_seed"),
        ({"sampling_params": {"no_stop_trim": 1}}, "no_stop_trim"),
        ({"sampling_params": [{"no_stop_trim": True}], "no_stop_trim": False}, "no_stop_trim"),
        ({"return_logprob": [True], "top_logprobs_num": [1, 2]}, "return_logprob"),
        ({"return_logprob": [True] * 3, "sampling_params": [{}, {}]}, "return_logprob"),
    ],
)
def test_contradictions_are_refused_by_name(fields, param):
    with pytest.raises(ApiError) as caught:
        params(**fields)
    assert caught.value.param == param
    assert param in str(caught.value)
