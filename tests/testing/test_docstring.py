# The examples in the docstring of `diskq.testing`, run as they are.

from __future__ import annotations

import re
from textwrap import dedent

import pytest

import diskq.testing

BLOCKS = re.findall(r"(?:^    .*\n|^\n)+", diskq.testing.__doc__ or "", re.MULTILINE)
FIRST, SECOND = (dedent(block) for block in BLOCKS if block.strip())


def run(example: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(example, "diskq.testing.__doc__", "exec"), names)
    return names


def test_the_first_example_passes():
    run(FIRST + "\ntest_a_confirmed_order_is_never_lost()")


def test_the_first_example_fails_where_its_promise_is_too_large():
    hasty = FIRST.replace('durability="synced"', 'durability="written"')
    with pytest.raises(AssertionError, match="pwrite /shop/orders"):
        run(hasty + "\ntest_a_confirmed_order_is_never_lost()")


def test_the_second_example_runs():
    assert "disk" in run(SECOND)
