# Scrapy's disk queue. Law: a crawl that was killed goes on with every request that waited.

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("scrapy")

from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from diskq.scrapy import RequestQueue
from tests.drop_ins.servers import served

PAGES = 150
AT_ONCE = 4
CRAWL = Path(__file__).with_name("crawl.py")
LONG = 60.0


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[RequestQueue]:
    queue = opened(tmp_path)
    yield queue
    queue.close()


def opened(path: Path) -> RequestQueue:
    crawler = get_crawler(Spider)
    crawler.spider = Spider("pages")
    return RequestQueue.from_crawler(crawler, str(path / "requests.queue" / "example.com" / "-1"))


def test_requests_come_in_order_and_stay_after_a_close(tmp_path: Path, queue: RequestQueue) -> None:
    assert (len(queue), queue.pop(), queue.peek()) == (0, None, None)
    for number in range(3):
        queue.push(Request(f"https://example.com/{number}", meta={"number": number}))
    assert (len(queue), _number(queue.peek()), _number(queue.pop())) == (3, 0, 0)
    queue.close()
    again = opened(tmp_path)
    assert [_number(again.pop()) for _ in range(len(again))] == [1, 2]
    again.close()


def _number(request: Request | None) -> int:
    assert request is not None
    return int(request.meta["number"])


def test_a_request_that_cannot_be_stored_is_refused_so_that_scrapy_keeps_it_in_memory(
    queue: RequestQueue,
) -> None:
    with pytest.raises(ValueError, match="pickle"):
        queue.push(Request("https://example.com", meta={"lock": threading.Lock()}))
    with pytest.raises(ValueError, match="bytes"):
        queue.push(Request("https://example.com", body=bytes(1 << 25)))
    assert len(queue) == 0


class Site:
    """A page that links to all others when it is first asked for. `seen` counts what was asked for."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.a_third = threading.Event()

    def page(self, path: str, _: bytes) -> tuple[int, bytes]:
        self.seen[path] += 1
        if len(self.seen) > PAGES // 3:
            self.a_third.set()
        if path != "/0" or self.seen[path] > 1:
            time.sleep(0.01)  # all requests wait in queues before a third has come
            return 200, b""
        return 200, "".join(f'<a href="/{number}">' for number in range(1, PAGES)).encode()


def test_a_crawl_that_was_killed_goes_on_with_every_request_that_waited(tmp_path: Path) -> None:
    site = Site()
    with served(site.page) as url:
        command = [sys.executable, str(CRAWL), f"{url}/0", str(tmp_path / "job")]
        crawl = subprocess.Popen(command)
        assert site.a_third.wait(LONG)
        crawl.kill()
        crawl.wait()
        assert len(site.seen) < PAGES
        subprocess.run(command, check=True, timeout=LONG)
    missing = PAGES - len(site.seen)
    assert missing <= AT_ONCE  # what was being fetched when it was killed, at most
