"""How much a caller may ask for, by a clock of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.scheduler import SamplingParams
from phloem.server.frontend import GenerationRequest, ServiceUnavailable
from phloem.server.http import limits
from phloem.server.http.errors import ApiError
from phloem.server.http.limits import Bucket, Limiter
from phloem.server.http.tenancy import Caller
from phloem.server.keys import KeyLimits


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def caller(name, **own):
    return Caller(name, name, tenant=name, limits=KeyLimits(**own))


ALICE = caller("a")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def limited(clock):
    """Makes a limiter, and asks it: its refusal, if it refuses."""

    def make(**shared):
        limiter = Limiter(KeyLimits(**shared), clock)

        def ask(who=ALICE, sequences=1, tokens=1, spends=0, headers=None, fails=None):
            try:
                with limiter.admit(who, sequences, tokens, headers) as admission:
                    admission.spend(spends)
                    if fails is not None:
                        raise fails
            except ApiError as error:
                return error
            except ServiceUnavailable:
                return None

        ask.limiter = limiter
        return ask

    return make


def test_requests_beyond_a_minutes_worth_wait_until_there_is_one_again(limited, clock):
    ask = limited(requests=2)
    assert ask() is ask() is None
    refused = ask()
    assert (refused.status, refused.code, refused.retry_after) == (429, "rate_limit_exceeded", 30)
    clock.now += 29
    assert ask() is not None
    clock.now += 1
    assert ask() is None
    assert ask() is not None


def test_each_of_n_sequences_counts(limited):
    ask = limited(requests=3)
    assert ask(sequences=2) is None
    assert ask(sequences=2).status == 429
    assert ask(sequences=1) is None


def test_a_request_that_could_never_be_let_in_names_no_time_to_come_again(limited):
    for refused in (
        limited(requests=3)(sequences=4),
        limited(tokens=3)(tokens=4),
        limited(concurrent=3)(sequences=4),
    ):
        assert (refused.status, refused.retry_after) == (429, None)


def test_outputs_put_a_caller_in_debt_which_time_pays(limited, clock):
    ask = limited(tokens=60)
    assert ask(tokens=10, spends=80) is None
    assert ask().retry_after == pytest.approx(31)
    clock.now += 31
    assert ask() is None


def test_callers_do_not_share_their_limits_and_a_keys_own_come_first(limited):
    ask = limited(requests=1)
    assert ask(caller("a")) is ask(caller("b")) is None
    assert ask(caller("a")).status == ask(caller("b")).status == 429
    own = caller("c", requests=2)
    assert ask(own) is ask(own) is None
    assert ask(own).status == 429


def test_the_admin_key_has_no_limits(limited):
    ask = limited(requests=1, concurrent=1)
    admin = Caller("x", "admin", admin=True, tenant="x")
    assert ask(admin, sequences=9) is ask(admin, sequences=9) is None


@pytest.mark.parametrize("error", [ApiError("no room", 503), ServiceUnavailable("it drains")])
def test_what_was_refused_before_it_began_is_given_back(limited, error):
    ask = limited(requests=1, tokens=5)
    ask(tokens=5, fails=error)
    assert ask(tokens=5) is None


@pytest.mark.parametrize(
    ("spends", "error"), [(1, ApiError("no room", 503)), (0, ApiError("too late", 408))]
)
def test_what_has_begun_is_paid_for(limited, spends, error):
    ask = limited(requests=1)
    ask(spends=spends, fails=error)
    assert ask().status == 429


def test_sequences_at_a_time_are_counted_until_they_end_however_they_end(limited):
    ask = limited(concurrent=2)
    with ask.limiter.admit(caller("a"), 2, 1):
        refused = ask()
        assert (refused.status, refused.retry_after) == (429, 1)
        assert ask(caller("b")) is None
    ask(sequences=2, fails=ApiError("x", 500))
    assert ask(sequences=2) is None


def test_headers_say_what_is_left_also_of_who_is_refused(limited, clock):
    ask = limited(requests=2, tokens=100)
    headers = []
    ask(tokens=40, headers=headers)
    assert dict(headers) == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"30.000s",
        b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"60",
        b"x-ratelimit-reset-tokens": b"24.000s",
    }
    assert ask(tokens=61, headers=headers).status == 429
    assert dict(headers)[b"x-ratelimit-remaining-tokens"] == b"60"


def test_callers_that_nobody_knows_are_forgotten_in_time_but_not_while_they_run(
    limited, monkeypatch
):
    monkeypatch.setattr(limits, "MAX_ACCOUNTS", 3)
    ask = limited(requests=1)
    with ask.limiter.admit(caller("runs"), 1, 1):
        for i in range(50):
            ask(caller(f"stranger-{i}"))
        assert len(ask.limiter._accounts) == 3
        assert ask(caller("runs")).status == 429
        assert ask(caller("stranger-49")).status == 429
        assert ask(caller("stranger-0")) is None


def scope_of(who, status=None):
    return {"headers": [], "state": {"caller": who, "response_headers": [], "status": status}}


def begun(limiter, who=ALICE):
    """Begins a request; its scope, or the refusal."""
    scope = scope_of(who)
    try:
        limiter.begin(scope)
    except ApiError as error:
        return error
    return scope


def test_a_request_counts_from_its_beginning_to_its_end_whatever_it_asks_for(clock):
    limiter = Limiter(KeyLimits(concurrent=1, requests=2), clock)
    scope = begun(limiter)
    assert begun(limiter).status == 429
    limiter.end(scope)
    limiter.end(begun(limiter))
    refused = begun(limiter)
    assert (refused.status, refused.retry_after) == (429, 30)


def test_one_that_is_refused_before_anything_is_computed_costs_nothing(clock):
    limiter = Limiter(KeyLimits(requests=1), clock)
    for _ in range(3):
        scope = begun(limiter)
        scope["state"]["status"] = 400
        limiter.end(scope)


def test_a_key_in_debt_may_not_begin(clock):
    limiter = Limiter(KeyLimits(tokens=60), clock)
    with limiter.admit(ALICE, 1, 1) as admission:
        admission.spend(69)
    assert begun(limiter).retry_after == 10


def test_what_has_begun_is_not_counted_again_when_it_is_admitted(clock):
    limiter = Limiter(KeyLimits(concurrent=3, requests=3), clock)
    scope = begun(limiter)
    requests = [GenerationRequest("r", [1, 2], SamplingParams())] * 3
    with limiter.admitted(scope, requests):
        assert begun(limiter).status == 429
    told = dict(scope["state"]["response_headers"])
    assert told[b"x-ratelimit-remaining-requests"] == b"0"
    assert len(told) == len(scope["state"]["response_headers"])
    limiter.end(scope)


def test_what_can_never_be_admitted_is_told_no_time_although_it_has_begun(clock):
    limiter = Limiter(KeyLimits(requests=3), clock)
    requests = [GenerationRequest("r", [1, 2], SamplingParams())] * 4
    refusal = pytest.raises(ApiError, match="4 requests, and this key may have 3")
    with refusal as caught, limiter.admitted(begun(limiter), requests):
        pass
    assert caught.value.retry_after is None


@given(
    limit=st.integers(1, 50),
    events=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=40),
)
def test_in_no_span_of_time_is_more_taken_than_it_brings_and_a_debt(limit, events):
    """A bucket brings its limit a minute, and may be full when a span begins."""
    bucket, now, taken = Bucket(limit, 0.0), 0.0, []
    for seconds, amount in events:
        now += seconds
        if bucket.wait(0, now) == 0:
            # Let in without knowing how much it will be, and paid for a while later.
            now += seconds / 2
            bucket.take(amount, now)
            taken.append((now, amount))
    for first, (begin, _) in enumerate(taken):
        for last in range(first, len(taken)):
            most = limit * (1 + (taken[last][0] - begin) / 60)
            debt = taken[last][1]
            assert sum(amount for _, amount in taken[first : last + 1]) <= most + debt + 1e-6
