"""Counter-based randomness: even, independent, and a function of (seed, position) alone."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from phloem.scheduler.randomness import draw_seeds, uniform


def numbers(seed, n):
    return uniform(np.full(n, seed, np.int64), np.arange(n, dtype=np.int32))


def test_a_number_does_not_depend_on_its_company():
    seeds = np.array([5, -3, 2**62, 5], np.int64)
    positions = np.array([0, 7, 100_000, 1], np.int32)
    together = uniform(seeds, positions)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == alone


def test_the_numbers_are_these_in_every_process_and_version():
    drawn = uniform(np.array([0, 1]), np.array([0, 1])).tolist()
    assert drawn == [0.6524484863740322, 0.9435642308648544]


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, -1])
def test_positions_of_one_seed_are_even(seed):
    counts, _ = np.histogram(numbers(seed, 100_000), bins=20, range=(0, 1))
    chi_square = ((counts - 5000) ** 2 / 5000).sum()
    assert chi_square < 50  # 19 degrees of freedom: beyond this once in 10,000


def test_neighbouring_seeds_and_positions_are_unrelated():
    streams = np.stack([numbers(seed, 5000) for seed in range(4)])
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.06
    assert abs(np.corrcoef(streams[0, :-1], streams[0, 1:])[0, 1]) < 0.06


def test_drawn_seeds_differ_and_follow_from_the_base():
    drawn = list(islice(draw_seeds(9), 1000))
    assert len(set(drawn)) == 1000
    assert drawn == list(islice(draw_seeds(9), 1000))
    assert drawn[:2] == [int(uniform(np.array([9]), np.array([i]))[0] * 2**53) for i in (1, 2)]
    assert next(draw_seeds(10)) != drawn[0]
