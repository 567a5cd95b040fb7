# When a barrier is due. Law: after a number of records, or some seconds after the first, and not before.

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.engine.log.sync import SyncPolicy


@pytest.fixture
def policy():
    return SyncPolicy(every=10, timeout=2.0)


def test_nothing_is_due_while_nothing_is_pending(policy):
    assert policy.count(0, now=1e9) > 0
    assert policy.due_at == math.inf


def test_it_is_due_with_the_last_record_of_the_count(policy):
    policy.count(9, now=0.0)
    assert policy.count(0, now=0.0) > 0
    assert policy.count(0, now=0.0) == 1
    policy.count(1, now=0.0)
    assert policy.count(0, now=0.0) == 0


def test_a_count_that_jumps_past_is_not_missed(policy):
    """go-diskqueue asks for equality, and so misses it (N17)."""
    policy.count(25, now=0.0)
    assert policy.count(0, now=0.0) == 0


def test_it_is_due_a_timeout_after_the_first_record_not_the_last(policy):
    policy.count(1, now=100.0)
    policy.count(1, now=101.9)
    assert policy.due_at == 102.0
    assert policy.count(0, now=101.99) > 0
    assert policy.count(0, now=102.0) == 0


def test_passing_no_record_does_not_set_the_clock_running(policy):
    policy.count(0, now=5.0)
    assert policy.due_at == math.inf


def test_what_is_forced_is_due_at_once_and_only_once(policy):
    policy.force()
    assert policy.count(0, now=0.0) == 0
    policy.prepared()
    assert policy.count(0, now=0.0) > 0


def test_a_prepared_barrier_covers_everything_so_far(policy):
    policy.count(10, now=0.0)
    policy.prepared()
    assert (policy.pending, policy.count(0, now=0.0), policy.due_at) == (0, 10, math.inf)


def test_the_records_that_may_still_pass_are_counted(policy):
    assert [policy.count(4, now=0.0) for _ in range(3)] == [6, 2, 0]


@given(
    st.integers(1, 50),
    st.floats(0.1, 10),
    st.lists(st.tuples(st.integers(0, 20), st.floats(0, 3)), max_size=30),
)
def test_it_is_due_exactly_when_the_count_or_the_clock_says_so(every, timeout, steps):
    policy = SyncPolicy(every, timeout)
    now, pending, first = 0.0, 0, math.inf
    for records, seconds in steps:
        now += seconds
        if records and not pending:
            first = now
        pending += records
        policy.count(records, now)
        is_due = pending >= every or now >= first + timeout
        assert (policy.count(0, now) == 0) == is_due
        if is_due:
            policy.prepared()
            pending, first = 0, math.inf


def test_a_writer_checks_at_half_of_the_bytes_and_at_all_of_them():
    policy = SyncPolicy(every=10, timeout=2.0, max_unsynced=1001)
    assert policy.half == 500
    assert [policy.bytes_until_check(unsynced) for unsynced in (0, 499, 500, 501, 1001)] == [
        500,
        1,
        0,
        500,
        0,
    ]
