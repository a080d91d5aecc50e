"""What a `SchedulerConfig` refuses: the value, the rule and the cure in one sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phloem.scheduler import SchedulerConfig

MIXED = {"enable_mixed_chunk": True}
PRIORITIES = {"enable_priority_scheduling": True}


def config(**options):
    return SchedulerConfig(**({"context_len": 100, "vocab_size": 50} | options))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedule_conservativeness": math.nan}, "schedule_conservativeness is nan: give"),
        ({"schedule_conservativeness": math.inf}, "schedule_conservativeness is inf: give"),
        ({"schedule_conservativeness": 0}, "schedule_conservativeness is 0: give"),
        ({"schedule_conservativeness": "1"}, "schedule_conservativeness is '1': give"),
        ({"itl_target_ms": math.nan} | MIXED, "itl_target_ms is nan: give more than 0"),
        ({"itl_target_ms": math.inf} | MIXED, "itl_target_ms is inf: give more than 0"),
        ({"itl_target_ms": 20.0}, "itl_target_ms is 20.0, but .* set enable_mixed_chunk"),
        ({"clip_max_new_tokens": 0}, "clip_max_new_tokens is 0: give an integer, 1 or more"),
        ({"clip_max_new_tokens": None}, "clip_max_new_tokens is None: give an integer, 1 or more"),
        ({"aging_tokens": "x"}, "aging_tokens is 'x': give an integer, 0 or more"),
        ({"context_len": 1.5}, "context_len is 1.5: give an integer"),
        ({"max_running_requests": True}, "max_running_requests is True: give an integer"),
        ({"max_queued_requests": 0}, "max_queued_requests is 0: .* 1 or more, or None"),
        ({"chunked_prefill_size": -1}, "chunked_prefill_size is -1: .* 1 or more, or None"),
        ({"default_seed": None}, "default_seed is None: give an integer"),
        (
            {"priority_preemption_threshold": 1.5} | PRIORITIES,
            "priority_preemption_threshold is 1.5: give an integer, 0 or more, or None",
        ),
        ({"priority_preemption_threshold": 0}, "is 0, but .* set enable_priority_scheduling"),
        (
            {"schedule_low_priority_values_first": True},
            "schedule_low_priority_values_first is True, but .* set enable_priority_scheduling",
        ),
        ({"enable_mixed_chunk": "off"}, "enable_mixed_chunk is 'off': give True or False"),
        ({"enable_tenant_fairness": 1}, "enable_tenant_fairness is 1: give True or False"),
    ],
)
def test_a_value_that_no_scheduler_could_use_is_refused_in_a_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        config(**options)


def test_values_at_their_bounds_and_numbers_of_numpy_are_taken():
    config(
        context_len=np.int64(1),
        clip_max_new_tokens=1,
        aging_tokens=0,
        in_batch_check_tokens=0,
        schedule_conservativeness=1e-3,
        itl_target_ms=1,
        priority_preemption_threshold=0,
        schedule_low_priority_values_first=True,
        schedule_policy="priority",
        default_seed=-1,
        **MIXED,
    )
