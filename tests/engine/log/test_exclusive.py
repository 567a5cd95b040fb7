# Every call of an engine holds the thread guard, or is listed here. What happens to a call that comes while
# another thread is inside: tests/contract/test_one_at_a_time.py.

from __future__ import annotations

import inspect
from typing import Any

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.log.writer import LogWriter
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.work import QueueWork
from diskq.engine.stream.stream import Stream

BY_HAND = {
    Queue: "put put_many put_nowait get get_many get_nowait",
    Stream: "append append_many",
    Journal: "append append_many",
    PriorityStore: "put put_many get get_many ack ack_many nack nack_many",
    QueueWork: "get get_nowait task_done",
    LogWriter: "complete prepare_log",
}
LOOKS = {
    Queue: "full qsize statistics",
    Stream: "partition_of",
    Journal: "",
    PriorityStore: "info queue queues statistics",
    QueueWork: "statistics",
    LogWriter: "check_usable durability is_point_due is_too_much_unsynced",
}
STEPS = {
    Queue: "advance clear close delete empty flush join peek peek_many sync",
    Stream: "close flush sync",
    Journal: "close flush sync",
    PriorityStore: "close flush peek sync",
    QueueWork: "join",
    LogWriter: "after_append append_failed begin bound_waiting catch_up catch_up_before clear_redo commit"
    " end_failed end_sync fail hold join_sync make_directories new_gate note note_signed on_release refuse"
    " release roll run share_sync shut sign raise_left_out use_redo use_state use_wals",
}
"""True for calls of a channel, in Trio's thread; and for calls that only call others."""


@pytest.mark.parametrize("engine", BY_HAND, ids=lambda engine: engine.__name__)
def test_a_call_without_the_guard_is_listed(engine: Any) -> None:
    calls = dict(inspect.getmembers(engine, inspect.isfunction))
    bare = {name for name, call in calls.items() if name[0] != "_" and not hasattr(call, "__wrapped__")}
    assert bare == {*BY_HAND[engine].split(), *LOOKS[engine].split(), *STEPS[engine].split()}
