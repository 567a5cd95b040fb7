# What is measured point by point and is not in the modules of its own format: a backlog that grows, and what
# opening it costs. Each opens what another process has filled and closed.

from __future__ import annotations

from benchmarks.peers import PEERS, body_for
from benchmarks.stopwatch import Reading, Stopwatch, body_of, resident_mib
from benchmarks.works import NAME
from diskq import open_queue

__all__ = ["backlog", "peer_backlog"]


async def backlog(directory: str, *, backlog: int, count: int, size: int) -> Reading:
    """Open a queue with a backlog; then send one and receive one, repeatedly, so that the backlog stays."""
    resident, watch, body = resident_mib(), Stopwatch(), body_of(size)
    async with open_queue(directory, NAME) as queue:
        opened = watch.stop(1)
        grown = resident_mib() - resident
        assert queue.depth == backlog
        watch = Stopwatch()
        for _ in range(count):
            await queue.send(body)
            await queue.receive()
        return watch.stop(count) | {"open_ms": opened["seconds"] * 1e3, "rss_mib": grown}


def peer_backlog(directory: str, *, peer: str, backlog: int, count: int, size: int) -> Reading:
    """The same of a peer. Memory is what this process grew by, and all of its servers'.

    Raises ModuleNotFoundError where the peer is not installed.
    """
    resident, watch, body = resident_mib(), Stopwatch(), body_for(peer, size)
    queue = PEERS[peer](directory, False)
    opened = watch.stop(1)
    grown = resident_mib() - resident + sum(map(resident_mib, queue.pids))
    watch = Stopwatch(*queue.pids)
    for _ in range(count):
        queue.put(body)
        queue.get()
    found = watch.stop(count)
    queue.close()
    return found | {"open_ms": opened["seconds"] * 1e3, "rss_mib": grown}
