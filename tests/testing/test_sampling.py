# What `make test` tries of a test that has several parameters. Law: each value is tried, and the choice is
# the same in each run and in each process.

from __future__ import annotations

import itertools

import pytest

from tests.sampling import covering


@pytest.mark.parametrize("sizes", [(1,), (5,), (2, 3), (5, 3, 2), (1, 1, 4)])
def test_each_value_is_met_in_as_few_cases_as_there_are_values_of_one_parameter(
    sizes: tuple[int, ...],
) -> None:
    every = [set(enumerate(case)) for case in itertools.product(*map(range, sizes))]
    chosen = covering(every)
    assert set().union(*(every[number] for number in chosen)) == set().union(*every)
    assert len(chosen) == max(sizes)


def test_cases_that_are_left_out_already_are_made_up_for_by_others() -> None:
    every = [set(enumerate(case)) for case in itertools.product(range(3), range(3))]
    rest = [case for case in every if case != {(0, 1), (1, 1)}]
    chosen = covering(rest)
    assert set().union(*(rest[number] for number in chosen)) == set().union(*every)


def test_of_no_cases_none_is_chosen() -> None:
    assert covering([]) == []
    assert covering([set()]) == []
