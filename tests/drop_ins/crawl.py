"""Crawl a site with requests in queues of diskq: python crawl.py URL JOBDIR."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response


class Pages(scrapy.Spider):
    name = "pages"
    url: str

    async def start(self) -> AsyncIterator[scrapy.Request]:
        yield scrapy.Request(self.url)

    def parse(self, response: Response) -> Iterator[scrapy.Request]:
        for link in response.css("a::attr(href)").getall():
            # Every third page has a priority, and so a queue, of its own.
            yield response.follow(link, priority=int(link.rpartition("/")[2]) % 3)


if __name__ == "__main__":
    _, url, directory = sys.argv
    process = CrawlerProcess(
        {
            "JOBDIR": directory,
            "SCHEDULER_DISK_QUEUE": "diskq.scrapy.RequestQueue",
            "SCHEDULER_START_DISK_QUEUE": "diskq.scrapy.RequestQueue",
            "SCHEDULER_PRIORITY_QUEUE": "diskq.scrapy.PriorityQueue",
            "CONCURRENT_REQUESTS": 4,
            "DOWNLOAD_DELAY": 0,
            "TELNETCONSOLE_ENABLED": False,
            "LOG_LEVEL": "ERROR",
        }
    )
    process.crawl(Pages, url=url)
    process.start()
