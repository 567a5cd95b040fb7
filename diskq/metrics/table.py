# The table of metrics. Law: each name is here once, with its unit and the source of its value, and every
# exporter takes it from here.
#
# Classes are recognised by name, so that a program that watches a queue need not import what a hub needs.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["KINDS", "METRICS", "PARTS", "Metric", "kind_of"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """The Prometheus name, without the `_total` that Prometheus adds to a counter's."""
    kind: Literal["counter", "gauge", "histogram"]
    """A counter counts since the store was opened; a histogram is of durations."""
    unit: str
    """The UCUM unit, as in OpenTelemetry: `By`, `s`, `1`; a counted unit is in braces."""
    help: str
    fields: Mapping[str, str]
    """The field that has the value, by the class of the statistics."""


KINDS: Mapping[str, str] = {
    "QueueChannel": "queue",
    "Queue": "queue",
    "QueueWorkChannel": "work",
    "QueueWork": "work",
    "StreamProducer": "producer",
    "StreamConsumer": "consumer",
    "JournalWriter": "journal",
    "JournalScanner": "scanner",
    "JournalShardWriter": "shards",
    "JournalShardScanner": "shard_scanner",
    "PriorityStoreChannel": "store",
    "PriorityStore": "store",
    "PriorityQueueChannel": "priority_queue",
    "Replay": "replay",
    "SpoolChannel": "spool",
    "Spool": "spool",
    "Hub": "hub",
    "Progress": "replication",
    "DiskBudget": "budget",
}
"""The value of the label `kind`, by the class of what can be watched."""

PARTS: Mapping[str, tuple[str, str]] = {
    "StreamConsumerStatistics": ("partitions", "partition"),
    "BudgetStatistics": ("members", "member"),
}
"""Statistics that contain others: the field, and the label that distinguishes them."""


def kind_of(store: object) -> str:
    """Return the kind of a store. Raises TypeError if it has no metrics."""
    for base in type(store).__mro__:
        if base.__name__ in KINDS and base.__module__.startswith("diskq."):
            return KINDS[base.__name__]
    raise TypeError(f"a {type(store).__name__} has no metrics; there are those of {', '.join(KINDS)}")


def _of(field: str, *classes: str) -> dict[str, str]:
    return {f"{name}Statistics": field for name in classes}


_MESSAGE, _BYTES, _SECONDS = "{message}", "By", "s"
_WRITERS = ("Queue", "StreamProducer", "JournalWriter", "PriorityStore")
_WITH_BARRIERS = ("QueueChannel", "StreamProducer", "JournalWriter", "PriorityStoreChannel", "Spool")

METRICS: tuple[Metric, ...] = (
    # --- messages ---
    Metric(
        "diskq_accepted_messages",
        "counter",
        _MESSAGE,
        "Messages accepted; by a hub: synced, too.",
        _of("accepted", "Queue", "StreamProducer", "JournalWriter", "Spool", "Hub"),
    ),
    Metric(
        "diskq_delivered_messages",
        "counter",
        _MESSAGE,
        "Messages taken out, handed out or delivered, counted each time.",
        _of("delivered", "Queue", "QueueWork", "Spool", "Replay", "Hub", "Replication"),
    ),
    Metric(
        "diskq_dropped_messages",
        "counter",
        _MESSAGE,
        'Messages dropped to free space (on_full="drop_oldest").',
        _of("dropped", "Queue"),
    ),
    Metric(
        "diskq_lost_messages",
        "counter",
        _MESSAGE,
        "Messages known to be lost to damage.",
        _of("lost", "Queue", "StreamConsumer", "JournalScanner"),
    ),
    Metric(
        "diskq_depth_messages",
        "gauge",
        _MESSAGE,
        "Messages that can be received, or wait to be delivered.",
        _of("depth", "Queue", "Spool") | {"PriorityQueueInfo": "ready"},
    ),
    Metric(
        "diskq_stored_messages",
        "gauge",
        _MESSAGE,
        "Messages in priority queues, including those that a worker holds.",
        _of("stored", "PriorityStore") | {"PriorityQueueInfo": "stored"},
    ),
    Metric(
        "diskq_next_offset",
        "gauge",
        "1",
        "The offset that the next message gets, by partition.",
        _of("next_offsets", "StreamProducer") | _of("next_offset", "JournalWriter", "Replication"),
    ),
    # --- readers ---
    Metric(
        "diskq_position_offset",
        "gauge",
        "1",
        "The offset of the message that is received next.",
        _of("position", "JournalScanner", "Replay") | {"PartitionLag": "position"},
    ),
    Metric(
        "diskq_committed_offset",
        "gauge",
        "1",
        "For a group: the last offset it has processed; for a named reader: the offset it reads next.",
        _of("committed", "JournalScanner") | {"PartitionLag": "committed"},
    ),
    Metric(
        "diskq_lag_messages",
        "gauge",
        _MESSAGE,
        "Messages that were not received yet.",
        _of("lag", "JournalScanner") | _of("lag", "Replay") | {"PartitionLag": "lag"},
    ),
    # --- disk and memory ---
    Metric(
        "diskq_disk_bytes",
        "gauge",
        _BYTES,
        "Bytes on disk; for a priority queue: of its messages; for a budget: of all members, and of each.",
        _of("bytes_on_disk", "Queue", "Spool")
        | _of("used", "Budget")
        | {"PriorityQueueInfo": "body_bytes", "BudgetMember": "used"},
    ),
    Metric("diskq_files", "gauge", "{file}", "Data files.", _of("files", "Queue")),
    Metric(
        "diskq_segments",
        "gauge",
        "{segment}",
        "Segments of the command log.",
        _of("segments", "PriorityStore"),
    ),
    Metric(
        "diskq_memory_bytes",
        "gauge",
        _BYTES,
        "Bytes of messages that are only in memory.",
        _of("memory_bytes", "Queue"),
    ),
    Metric(
        "diskq_written_bytes",
        "counter",
        _BYTES,
        "Bytes of records written to the files, with their framing.",
        _of("written_bytes", *_WRITERS, "Hub"),
    ),
    Metric(
        "diskq_delivered_bytes",
        "counter",
        _BYTES,
        "Bytes of the keys and values that a hub has accepted from a copy.",
        _of("delivered_bytes", "Replication"),
    ),
    Metric(
        "diskq_unsynced_bytes",
        "gauge",
        _BYTES,
        "Bytes accepted and not yet on stable storage.",
        _of("unsynced_bytes", *_WRITERS),
    ),
    Metric(
        "diskq_barriers",
        "counter",
        "{barrier}",
        "Barriers executed: each makes everything written before it durable.",
        _of("barriers", *_WRITERS),
    ),
    Metric(
        "diskq_barrier_seconds",
        "histogram",
        _SECONDS,
        "How long barriers took on the disk: each is one or several syncs of files and directories.",
        _of("barrier_seconds", *_WITH_BARRIERS),
    ),
    Metric(
        "diskq_repairs",
        "counter",
        "{repair}",
        "Damage found in the files, at the open and since.",
        _of("repairs", "Queue", "PriorityStore", "Spool"),
    ),
    # --- waiting tasks ---
    Metric(
        "diskq_waiting_send_tasks",
        "gauge",
        "{task}",
        "Tasks that wait for space or for a sync.",
        _of(
            "tasks_waiting_send",
            "QueueChannel",
            "StreamProducer",
            "JournalWriter",
            "PriorityStoreChannel",
            "PriorityQueueChannel",
        ),
    ),
    Metric(
        "diskq_waiting_receive_tasks",
        "gauge",
        "{task}",
        "Tasks that wait for messages.",
        _of(
            "tasks_waiting_receive",
            "QueueChannel",
            "StreamConsumer",
            "JournalScanner",
            "PriorityStoreChannel",
            "PriorityQueueChannel",
        ),
    ),
    Metric(
        "diskq_open_handles",
        "gauge",
        "{handle}",
        "Open handles.",
        _of("open_handles", "QueueChannel", "StreamProducer", "JournalWriter"),
    ),
    # --- work ---
    Metric(
        "diskq_in_flight_messages",
        "gauge",
        _MESSAGE,
        "Messages that workers hold.",
        _of("in_flight", "QueueWork") | {"PriorityQueueInfo": "in_flight"},
    ),
    Metric(
        "diskq_returned_messages",
        "gauge",
        _MESSAGE,
        "Messages to be handed out again at once.",
        _of("returned", "QueueWork"),
    ),
    Metric(
        "diskq_delayed_messages",
        "gauge",
        _MESSAGE,
        "Messages to be handed out again later.",
        _of("delayed", "QueueWork"),
    ),
    Metric(
        "diskq_redelivered_messages",
        "counter",
        _MESSAGE,
        "Messages handed out that had been handed out before.",
        _of("redelivered", "QueueWork"),
    ),
    Metric(
        "diskq_acknowledged_messages",
        "counter",
        _MESSAGE,
        "Messages acknowledged.",
        _of("acknowledged", "QueueWork"),
    ),
    Metric(
        "diskq_given_back_messages",
        "counter",
        _MESSAGE,
        "Messages given back.",
        _of("given_back", "QueueWork"),
    ),
    Metric(
        "diskq_exhausted_messages",
        "counter",
        _MESSAGE,
        "Messages removed after max_attempts.",
        _of("exhausted", "QueueWork"),
    ),
    # --- spools ---
    Metric(
        "diskq_buried_messages",
        "counter",
        _MESSAGE,
        "Messages that became dead letters.",
        _of("buried", "Spool"),
    ),
    Metric(
        "diskq_dead_letters",
        "gauge",
        "{letter}",
        "Dead letters now.",
        _of("dead_letters", "Spool"),
    ),
    Metric("diskq_failed_tries", "counter", "{try}", "Tries that failed.", _of("failed_tries", "Spool")),
    Metric(
        "diskq_failures_in_a_row",
        "gauge",
        "{failure}",
        "Failures since the last success.",
        _of("failures", "Spool", "Replication"),
    ),
    Metric(
        "diskq_oldest_message_age_seconds",
        "gauge",
        _SECONDS,
        "How long the oldest message has waited to be delivered.",
        _of("oldest_age", "Spool"),
    ),
    Metric(
        "diskq_is_paused",
        "gauge",
        "1",
        "1: deliveries are paused, by hand or because too many failed.",
        _of("is_paused", "Spool"),
    ),
    Metric(
        "diskq_replay_behind_seconds",
        "gauge",
        _SECONDS,
        "How long the next message of a replay has been due.",
        _of("behind", "Replay"),
    ),
    # --- priority stores ---
    Metric("diskq_queues", "gauge", "{queue}", "Queues of the store.", _of("queues", "PriorityStore")),
    Metric("diskq_commands", "counter", "{command}", "Commands written.", _of("commands", "PriorityStore")),
    Metric("diskq_snapshots", "counter", "{snapshot}", "Snapshots taken.", _of("snapshots", "PriorityStore")),
    # --- hubs, and copies to them ---
    Metric("diskq_hub_puts", "counter", "{request}", "Put requests.", _of("puts", "Hub")),
    Metric("diskq_hub_gets", "counter", "{request}", "Get requests.", _of("gets", "Hub")),
    Metric(
        "diskq_hub_gaps",
        "counter",
        "{request}",
        "Requests refused because their messages did not follow those of the journal.",
        _of("gaps", "Hub"),
    ),
    Metric(
        "diskq_hub_refused",
        "counter",
        "{request}",
        "Requests refused for any other reason.",
        _of("refused", "Hub"),
    ),
    Metric(
        "diskq_hub_requests_under_way",
        "gauge",
        "{request}",
        "Requests under way now.",
        _of("under_way", "Hub"),
    ),
    Metric(
        "diskq_hub_open_journals",
        "gauge",
        "{journal}",
        "Open journals.",
        _of("open_journals", "Hub"),
    ),
    Metric(
        "diskq_hub_duplicate_messages",
        "counter",
        _MESSAGE,
        "Messages that were put and already there.",
        _of("duplicates", "Hub"),
    ),
    Metric(
        "diskq_source_next_offset",
        "gauge",
        "1",
        "The offset after the last message of the journal that is copied.",
        _of("source_next_offset", "Replication"),
    ),
    # --- budgets ---
    Metric("diskq_budget_max_bytes", "gauge", _BYTES, "The size of the budget.", _of("max_bytes", "Budget")),
    Metric(
        "diskq_budget_granted_bytes",
        "gauge",
        _BYTES,
        "Bytes granted to members.",
        _of("granted", "Budget") | {"BudgetMember": "granted"},
    ),
    Metric("diskq_budget_free_bytes", "gauge", _BYTES, "Bytes granted to no member.", _of("free", "Budget")),
    Metric(
        "diskq_budget_waiting_members",
        "gauge",
        "{member}",
        "Members in which a task waits for space.",
        _of("waiting", "Budget"),
    ),
)
