# Scrapy's requests in queues of diskq. Law: a request that waits is not lost, whatever ends the crawl; one
# that was in hand then may be fetched again, or not.

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.utils.request import request_from_dict

from diskq.engine.layouts import queue_names
from diskq.engine.queue.fifo_queue import Queue
from diskq.storage.fs import OsFileSystem

__all__ = ["PriorityQueue", "RequestQueue"]


class PriorityQueue(DownloaderAwarePriorityQueue):
    """Scrapy's `SCHEDULER_PRIORITY_QUEUE`: its own default, which also finds what a killed crawl has left.

    Scrapy writes down which hosts and priorities have requests when a crawl ends, and the next crawl opens
    these. This class opens each `RequestQueue` below the `JOBDIR` that has requests.
    """

    def __init__(
        self, crawler: Crawler, kind: type[Any], key: str, named: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """`named` is what Scrapy has written down: priorities by host."""
        super().__init__(crawler, kind, key, None, **others)
        for slot, priorities in self._left(crawler, named or {}).items():
            self.pqueues[slot] = self.pqfactory(slot, priorities)

    def _left(self, crawler: Crawler, named: dict[str, Iterable[int]]) -> dict[str, set[int]]:
        """Return the priorities for each host: those that are `named`, and those of queues with requests."""
        found = {slot: set(priorities) for slot, priorities in named.items()}
        fs = OsFileSystem()
        for directory in Path(self.key).iterdir() if self.key else ():  # without a key it is in memory
            for name in queue_names(fs, str(directory)) if directory.is_dir() else ():
                queue = RequestQueue(crawler, str(directory / name))
                if (request := queue.peek()) is not None:
                    slot = self._downloader_interface.get_slot_key(request)
                    found.setdefault(slot, set()).add(int(name.removesuffix("s")))
                queue.close()
        return found


class RequestQueue:
    """Scrapy's `SCHEDULER_DISK_QUEUE`: requests of one priority, first in, first out, in a `Queue`.

    Scrapy makes one for each host and priority, below the `JOBDIR` of the crawl; `PriorityQueue` finds them
    after a kill. A push is in the page cache: it survives the process. What was popped is recorded within two
    seconds, so after a kill what was popped since is fetched again. Scrapy does not say when it is done with
    a request: one whose pop was recorded, and that was being fetched at the kill, is not fetched again.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str) -> RequestQueue:
        return cls(crawler, key)

    def __init__(self, crawler: Crawler, key: str) -> None:
        """Open the queue at the path `key`. Raises as `Queue`."""
        self._spider = crawler.spider
        Path(key).parent.mkdir(parents=True, exist_ok=True)
        self._queue = Queue(key)

    def push(self, request: Request) -> None:
        """Add a request at the end.

        Raises ValueError if it cannot be pickled or is over 16 MiB, after which Scrapy keeps it in memory;
        and OSError.
        """
        try:
            body = pickle.dumps(request.to_dict(spider=self._spider))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from error
        self._queue.put(body)

    def pop(self) -> Request | None:
        """Take the oldest request, None if there is none."""
        return None if self._queue.empty() else self._request_in(self._queue.get_nowait())

    def peek(self) -> Request | None:
        """Return the request that comes next, which stays."""
        body = self._queue.peek()
        return None if body is None else self._request_in(body)

    def __len__(self) -> int:
        return len(self._queue)

    def close(self) -> None:
        self._queue.close()

    def _request_in(self, body: bytes) -> Request:
        return request_from_dict(pickle.loads(body), spider=self._spider)
