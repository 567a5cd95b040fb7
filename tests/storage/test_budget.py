# The budget alone: what it grants, to which member, in which order. The test plays the members.

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from diskq.options import OnFull, QueueOptions
from diskq.storage.budget import BudgetShare, DiskBudget, join_budget
from tests.sampling import examples

KIB = 1024


def joined(budget: DiskBudget, name: str = "a", used: int = 0, on_full: OnFull = "wait") -> BudgetShare:
    return join_budget(budget, name, used, 0, on_full)


def free(budget: DiskBudget) -> int:
    return budget.statistics().free


# --- leases -----------------------------------------------------------------------------------


def test_a_reservation_is_granted_with_some_ahead_and_unused_space_is_given_back():
    budget = DiskBudget(1024 * KIB, headroom=24 * KIB)
    share = joined(budget)
    assert share.reserve(0, 100 * KIB)
    assert share.granted == 116 * KIB
    assert free(budget) == 884 * KIB
    share.settle(10 * KIB)
    assert share.granted == 26 * KIB
    share.close()
    share.close()
    assert free(budget) == 1000 * KIB


def test_headroom_is_never_given_out():
    budget = DiskBudget(1024 * KIB, headroom=256 * KIB)
    share = joined(budget)
    assert not share.reserve(0, 769 * KIB)
    assert share.reserve(0, 768 * KIB)
    assert not joined(budget, "b").reserve(0, 1)


def test_a_member_that_joins_with_too_much_is_let_in_and_gets_no_more():
    budget = DiskBudget(128 * KIB, headroom=0)
    share = joined(budget, used=200 * KIB)
    assert not share.reserve(200 * KIB, 1)
    share.settle(127 * KIB)
    assert share.reserve(127 * KIB, KIB)
    assert not share.reserve(128 * KIB, 1)


def test_a_waiting_member_is_notified_when_space_is_granted():
    budget = DiskBudget(128 * KIB, headroom=0)
    first, second = joined(budget, "a"), joined(budget, "b")
    notified: list[str] = []
    second.notify = lambda: notified.append("b")
    assert first.reserve(0, 128 * KIB)
    assert not second.reserve(0, 50 * KIB)
    second.wait(second.arrival())
    first.settle(100 * KIB)
    assert notified == []
    first.settle(70 * KIB)
    assert notified == ["b"]
    assert second.granted == 50 * KIB
    second.settle(0)  # a barrier of its own meanwhile takes nothing of it away
    assert not first.reserve(70 * KIB, 9 * KIB)
    assert second.reserve(0, 50 * KIB)


def test_the_first_arrival_is_served_first_whenever_its_member_began_to_wait():
    budget = DiskBudget(1024 * KIB, headroom=0)
    full, first, second = (joined(budget, name) for name in "abc")
    numbers = first.arrival(), second.arrival()
    assert full.reserve(0, 1024 * KIB)
    for share, arrived in ((second, numbers[1]), (first, numbers[0])):
        assert not share.reserve(0, 500 * KIB)
        share.wait(arrived)
    full.settle(500 * KIB)
    assert (first.granted, second.granted) == (500 * KIB, 0)


def test_members_within_a_fair_share_go_before_others():
    budget = DiskBudget(1024 * KIB, headroom=0)
    full, giant, small = (joined(budget, name) for name in "abc")
    assert full.reserve(0, 1024 * KIB)
    for share, size in ((giant, 800 * KIB), (small, 100 * KIB)):
        assert not share.reserve(0, size)
        share.wait(share.arrival())
    full.settle(900 * KIB)
    assert (giant.granted, small.granted) == (0, 100 * KIB)
    full.settle(200 * KIB)
    assert not full.reserve(200 * KIB, 1024 * KIB // 6)  # it would have more than a sixth
    assert full.reserve(100 * KIB, 50 * KIB)
    full.settle(0)
    assert giant.granted == 800 * KIB


def test_others_are_notified_once_that_space_is_wanted_until_they_settle():
    budget = DiskBudget(128 * KIB, headroom=0)
    first, second = joined(budget, "a"), joined(budget, "b")
    notified: list[str] = []
    first.notify = lambda: notified.append("a")
    assert first.reserve(0, 120 * KIB)
    assert not second.reserve(0, 50 * KIB)
    second.request_space()
    second.request_space()
    assert notified == ["a"]
    first.settle(120 * KIB)
    second.request_space()
    assert notified == ["a", "a"]


def test_the_member_with_the_oldest_droppable_file_is_asked():
    budget = DiskBudget(128 * KIB, headroom=0)
    asking, older, newer = (joined(budget, name, on_full="drop_oldest") for name in "abc")
    joined(budget, "d", on_full="wait")
    assert not asking.reserve(0, 129 * KIB)
    assert not asking.ask_to_drop()
    older.oldest, newer.oldest = 5, 7
    assert asking.ask_to_drop()
    assert (older.asked, newer.asked) == (KIB, 0)
    assert older.is_contended


def test_a_member_drops_old_files_of_its_own_then_the_oldest_elsewhere_then_young_ones_of_its_own():
    budget = DiskBudget(128 * KIB, headroom=0)
    asking, other = joined(budget, on_full="drop_oldest"), joined(budget, "b", on_full="drop_oldest")
    assert not asking.reserve(0, 129 * KIB)
    other.oldest = 5
    assert asking.on_refusal(has_old=True, has_young=True) == "droppable"
    assert other.asked == 0
    assert asking.on_refusal(has_old=False, has_young=True) == "others"
    assert other.asked == KIB
    other.close()
    assert asking.on_refusal(has_old=False, has_young=True) == "droppable"
    assert asking.on_refusal(has_old=False) == "over_budget"


def test_a_member_that_does_not_drop_notifies_all_and_asks_none_to_drop():
    budget = DiskBudget(128 * KIB, headroom=0)
    asking, other = joined(budget), joined(budget, "b", on_full="drop_oldest")
    notified: list[str] = []
    other.notify = lambda: notified.append("b")
    other.oldest = 5
    assert not asking.reserve(0, 129 * KIB)
    assert asking.on_refusal(has_old=False) == "over_budget"
    assert notified == ["b"]
    assert other.asked == 0


def test_threads_never_get_the_same_space_twice():
    budget = DiskBudget(1024 * KIB, headroom=0)
    shares = [joined(budget, str(number)) for number in range(4)]
    worst: list[int] = []

    def churn(share: BudgetShare) -> None:
        used = 0
        for number in range(3000):
            if share.reserve(used, 700):
                used += 700
            if number % 40 == 39:
                used //= 2
                share.settle(used)
            worst.append(sum(each.granted for each in shares))
        share.close()

    threads = [threading.Thread(target=churn, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The sum is not taken at one moment: between two of its terms one lease may have moved.
    assert max(worst) <= (1024 + 3 * 32) * KIB
    assert free(budget) == 1024 * KIB


@pytest.mark.parametrize(
    "bad", [{"max_bytes": 1}, {"max_bytes": 10**6, "headroom": -1}, {"max_bytes": 10**6, "headroom": 10**6}]
)
def test_sizes_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="is"):
        DiskBudget(**bad)


def test_an_object_that_is_not_a_budget_is_refused():
    with pytest.raises(TypeError, match="budget is a DiskBudget, got 1000000"):
        QueueOptions(budget=1_000_000)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="whole number"):
        DiskBudget(1e9)  # type: ignore[arg-type]


def test_options_with_a_budget_are_compared_and_hashed_as_others_are():
    budget = DiskBudget(1024 * KIB)
    assert QueueOptions(budget=budget) == QueueOptions(budget=budget) != QueueOptions()
    assert len({QueueOptions(budget=budget), QueueOptions(budget=budget)}) == 1
    assert QueueOptions(budget=budget).roll_size == 128 * KIB


# --- random actions of members ----------------------------------------------------------------

ROOM = 1024 * KIB
MEMBERS = 5


class Budgeted(RuleBasedStateMachine):
    """Members that send, consume, wait, give up and return, in any order."""

    @initialize()
    def begin(self) -> None:
        self.budget = DiskBudget(ROOM, headroom=0)
        self.shares: dict[int, BudgetShare] = {}
        self.used: dict[int, int] = {}
        self.notified: set[int] = set()
        for number in range(MEMBERS):
            self.join(number)

    def join(self, number: int) -> None:
        share = self.shares[number] = join_budget(self.budget, str(number), 0, 0, "wait")
        self.used[number] = 0
        share.notify = lambda: self.notified.add(number)

    @rule(number=st.integers(0, MEMBERS - 1), size=st.sampled_from([1, 5000, 100_000, 400_000, ROOM]))
    def send(self, number: int, size: int) -> None:
        share = self.shares[number]
        if share.is_waiting:
            return  # a sender of its own is first
        ahead_of = list(self.budget._waiting)
        if share.reserve(self.used[number], size):
            assert not ahead_of or self.used[number] + size <= max(share.granted, ROOM // (2 * MEMBERS))
            self.used[number] += size
        else:
            share.wait(share.arrival())

    @rule(number=st.integers(0, MEMBERS - 1), part=st.integers(1, 4))
    def consume(self, number: int, part: int) -> None:
        self.used[number] -= self.used[number] // part
        self.shares[number].settle(self.used[number])

    @precondition(lambda self: self.notified)
    @rule()
    def go_on(self) -> None:
        """Let notified members reserve their space, if they still want it."""
        number = min(self.notified)
        self.notified.discard(number)
        share = self.shares[number]
        if not share.is_waiting and share._reserved:
            assert share.reserve(self.used[number], share.size)
            self.used[number] += share.size

    @rule(number=st.integers(0, MEMBERS - 1))
    def give_up(self, number: int) -> None:
        self.shares[number].leave()
        self.shares[number].settle(self.used[number])

    @rule(number=st.integers(0, MEMBERS - 1))
    def close_and_come_again(self, number: int) -> None:
        self.shares[number].close()
        self.notified.discard(number)
        self.join(number)

    @invariant()
    def nothing_is_given_out_twice(self) -> None:
        if not hasattr(self, "shares"):
            return
        granted = [share.granted for share in self.shares.values()]
        assert sum(granted) == self.budget.statistics().granted <= ROOM
        assert all(share.granted >= self.used[number] for number, share in self.shares.items())

    @invariant()
    def nobody_who_is_first_waits_while_there_is_room(self) -> None:
        if not hasattr(self, "shares"):
            return
        line = [share for share in self.shares.values() if share.is_waiting]
        small = [share for share in line if share.used + share.size <= ROOM // (2 * MEMBERS)]
        if line:
            first = min(small or line, key=lambda share: share.arrived)
            assert first.used + first.size - first.granted > self.budget.statistics().free


Budgeted.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
test_a_budget_is_what_its_model_says = Budgeted.TestCase
