import random
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.radix_cache.analysis import BYTES, TOKENS, PrefixStats, Unit
from phloem.radix_cache.analysis.kinds import Place, kind_of, kind_of_ids
from phloem.radix_cache.analysis.varying import Template

RULES = " ".join(f"Rule {n}: be kind to number {n * n}." for n in range(60))


def analysed(prompts, unit=BYTES, page_size=16):
    stats = PrefixStats(page_size, sizes=[2**20], unit=unit)
    for prompt in prompts:
        stats.add(prompt)
    return stats.report().pollution


def seconds(n):
    return datetime(2026, 3, 9, 11, 59) + timedelta(seconds=37 * n)


VARYING = {
    "timestamp": lambda n: seconds(n).isoformat() + "Z",
    "timestamp ": lambda n: f"{seconds(n):%A, %B %d, %Y at %I:%M %p}",
    "date": lambda n: f"{datetime(2026, 1, 1) + timedelta(days=n):%Y-%m-%d}",
    "time": lambda n: f"{seconds(n):%H:%M:%S}",
    "unix time": lambda n: str(1_790_000_000 + 977 * n),
    "uuid": lambda n: f"{random.Random(n).getrandbits(32):08x}-1234-4bcd-8ef0-0123456789ab",
    "hex string": lambda n: f"a1{random.Random(n).getrandbits(60):016x}",
    "random string": lambda n: f"req_Zq7{random.Random(n).getrandbits(60)}xK",
    "counter": lambda n: str(n),
    "number": lambda n: str(10 + n * 7919 % 90),
    "ip address": lambda n: f"10.0.{n}.{n * 7 % 250}",
    "email address": lambda n: f"user{n * n}@example.org",
}


@pytest.mark.parametrize("kind", VARYING)
def test_a_changing_part_before_shared_text_is_named_and_moved(kind):
    parts = [VARYING[kind](n) for n in range(40)]
    prompts = [f"System [{part}]: {RULES} Question {n}?" for n, part in enumerate(parts)]
    report = analysed(prompts)
    (found,) = report.found
    assert found.kind == kind.strip()
    assert (found.before, found.after[:2]) == ("System [", "]:")
    assert found.start == 8
    assert found.examples == tuple(dict.fromkeys(parts))[:3]
    assert (found.requests, found.distinct) == (40, len(set(parts)))
    assert abs(found.shared - len(RULES)) < 30
    assert f"Move the {found.kind} at bytes 8" in found.advice
    assert report.rate < 0.6 < 0.9 < report.moved_rate
    assert found.gain == pytest.approx(report.moved_rate - report.rate)


def test_the_rate_after_the_move_is_that_of_prompts_with_the_part_at_their_end():
    parts = [VARYING["uuid"](n) for n in range(30)]
    report = analysed([f"id {part} {RULES} Question {n}?" for n, part in enumerate(parts)])
    by_hand = PrefixStats(16, [2**20], unit=BYTES)
    for n, part in enumerate(parts):
        by_hand.add(f"id  {RULES} Question {n}?{part}")
    assert report.moved_rate == by_hand.report().rate
    assert report.moved_curve == by_hand.curve("lru")


def test_two_applications_and_a_part_behind_a_part_are_all_found():
    more = " ".join(f"Fact {n} follows fact {n - 1}." for n in range(80))
    prompts = []
    for n in range(60):
        time, user = VARYING["timestamp"](n), VARYING["uuid"](n)
        prompts.append(f"Now: {time}. {RULES} You talk to {user}. {more} Q{n}")
        prompts.append(f"Ticket {1000 + n}. {more} Q{n}")
    report = analysed(prompts)
    assert {found.kind for found in report.found} == {"timestamp", "uuid", "counter"}
    assert report.moved_rate > 0.9
    gains = [found.gain for found in report.found]
    assert gains == sorted(gains, reverse=True)
    assert sum(gains) == pytest.approx(report.moved_rate - report.rate)


def test_a_date_beside_a_time_moves_with_it_though_it_changes_less_often():
    prompts = [
        f"#{n} of {seconds(n * 60):%H:%M:%S}, {seconds(n * 60):%Y-%m-%d}: {RULES} {n}?"
        for n in range(80)
    ]
    (found,) = analysed(prompts).found
    assert found.kind == "counter + time + date"
    assert found.before == "#"


def test_a_chat_that_sends_the_time_anew_at_each_turn_is_polluted():
    chat, prompts = f"{RULES}\n", []
    for n in range(30):
        chat += f"user: tell me about {n * n}\n"
        prompts.append(f"[{seconds(n):%H:%M:%S}]\n{chat}")
        chat += f"bot: {n * n} is the square of {n}, and lies between its neighbours\n"
    report = analysed(prompts)
    assert [found.kind for found in report.found] == ["time"]
    assert report.rate < 0.1
    assert report.moved_rate > 0.85


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (lambda n: [5000 + n], "counter"),
        (lambda n: [9000 + n * 7919 % 1000, n % 3], "unique ids"),
        (lambda n: [9000 + n % 5], "changing ids"),
    ],
)
def test_token_ids_are_searched_without_a_tokenizer(part, kind):
    system = random.Random(0).choices(range(4000), k=300)
    prompts = [[1, 2, *part(n), *system, 6000 + n, *[n] * 30] for n in range(40)]
    (found,) = analysed(prompts, TOKENS, page_size=4).found
    assert found.kind == kind
    assert (found.start, found.length) == (2, len(part(0)))
    assert found.before == "1 2"
    assert found.shared == 300
    assert found.examples[0] == " ".join(map(str, part(0)))


def test_token_ids_with_a_decoder_are_named_and_shown_as_text():
    unit = Unit("tokens", TOKENS.width, decode=lambda ids: "".join(map(chr, ids)))
    prompts = [[ord(c) for c in f"Now {VARYING['timestamp'](n)}\n{RULES} {n}?"] for n in range(20)]
    (found,) = analysed(prompts, unit).found
    assert found.kind == "timestamp"
    assert found.examples[0] == "2026-03-09T11:59:00Z"
    assert found.after.startswith("\\nRule 0")


def test_what_is_shared_already_or_differs_at_length_is_no_pollution():
    rng = random.Random(1)
    assert analysed([f"{RULES} Question {n}?" for n in range(40)]).found == ()
    essays = [" ".join(str(rng.random()) for _ in range(100)) + RULES for _ in range(20)]
    assert analysed(essays).found == ()
    assert analysed([str(rng.random()) * 40 for _ in range(40)]).found == ()
    assert analysed([f"{n}{RULES}" for n in range(2)]).found == (), "two are no pattern"
    assert analysed([]) is None


def test_many_applications_with_the_same_fault_are_all_found():
    rng = random.Random(5)
    systems = [rng.choices(range(9000), k=200) for _ in range(12)]
    prompts = [
        [10_000 + n, *rng.choice(systems), *rng.choices(range(9000), k=20)] for n in range(400)
    ]
    report = analysed(prompts, TOKENS, page_size=4)
    assert len(report.found) == 12
    assert report.moved_rate > 0.8


def test_namespaces_are_searched_apart():
    stats = PrefixStats(16, [], unit=BYTES)
    for n in range(40):
        stats.add(f"{n} {RULES}", namespace=(n,))
    assert stats.report().pollution.found == ()


def test_the_sample_is_bounded_and_the_most_recent():
    stats = PrefixStats(4, [], sample=1000)
    for n in range(100):
        stats.add([n] * 60, output=[n] * 40)
    pollution = stats.report().pollution
    assert (pollution.requests, pollution.prompt) == (10, 600)
    assert PrefixStats(4, [], sample=0).report().pollution is None


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "abcd" * 9]),
            st.text("0123456789", max_size=6),
            st.sampled_from(["", RULES[:400], RULES[100:900]]),
            st.text("xyz é", max_size=40),
        ),
        max_size=40,
    )
)
def test_no_traffic_breaks_the_search_and_a_move_never_lowers_the_rate(pieces):
    report = analysed(["".join(parts) for parts in pieces], page_size=8)
    if report is not None:
        assert report.moved_rate >= report.rate
        assert all(found.gain > 0 and found.requests >= 3 for found in report.found)


@given(
    st.lists(st.integers(0, 2), max_size=4),
    st.lists(st.integers(0, 2), max_size=12),
    st.sampled_from([1, 4]),
)
def test_a_part_reaches_up_to_the_next_known_text_within_reach(before, rest, width):
    def packed(items):
        return b"".join(item.to_bytes(width, "big") for item in items)

    after, reach = [0, 1], 6
    template = Template(packed(before), packed(after), reach * width, width)
    length = next((n for n in range(reach + 1) if rest[n : n + 2] == after), 0)
    place = slice(len(before) * width, (len(before) + length) * width)
    assert template.varying(packed(before + rest)) == (place if length else None)
    if before:
        assert template.varying(packed([9, *before, *rest])) is None


def test_a_thing_is_known_by_its_whole_though_only_its_middle_changes():
    places = [Place(f"at 2026-03-0{n}T10:00, we", 12, 13) for n in range(1, 9)]
    kind = kind_of(places)
    assert (kind.name, kind.left, kind.right) == ("timestamp", 9, 6)
    words = [Place(f"dear {name}, hello", 5, 5 + len(name)) for name in ("Ann", "Bob", "Eve")]
    assert kind_of(words).name == "text"


def test_ids_that_rise_are_a_counter():
    assert kind_of_ids([[1], [2], [7]]) == "counter"
    assert kind_of_ids([[3], [2], [7]]) == "unique ids"
    assert kind_of_ids([[3], [3], [7]]) == "changing ids"
