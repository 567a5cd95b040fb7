# Synced sends to a priority store: those that wait for the same sync share one write, to whichever queues.
#
# Law: a gathered message is only in memory until it is written, and it is written before any later command.
# A failed write is reported to the senders whose messages it could not take, and to no others.

from __future__ import annotations

from diskq.channels.core.gathering import REFUSALS, Refused
from diskq.engine.priority.steps import AddBatch, PrioritySteps
from diskq.errors import StorageFailedError

__all__ = ["write_batch"]


def write_batch(engine: PrioritySteps, batch: AddBatch) -> Refused:
    """Add all messages with one write; if that fails, with one write for each message that is not in.

    Raises StorageFailedError.
    """
    try:
        engine.add_batch(batch)
        return []
    except StorageFailedError:
        raise
    except REFUSALS as failure:
        if len(batch) == 1:
            return [(batch.tasks[0], failure)]
    refused: Refused = []
    for number, task in enumerate(batch.tasks):
        if not batch.id_of(number):
            queue, payload, key = batch.message(number)
            try:
                batch.set_id(number, engine.add(queue, [payload], key, "synced")[0])
            except StorageFailedError:
                raise
            except REFUSALS as failure:
                refused.append((task, failure))
    return refused
