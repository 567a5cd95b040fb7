"""Metrics of a queue and a budget for Prometheus: served over HTTP, scraped, and printed.

    pip install 'diskqueue[prometheus]'
    python examples/metrics.py

Prometheus would scrape the page every few seconds; here the program does it, once. examples/dashboard.json
shows the same in Grafana: import it there, and choose your Prometheus.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import prometheus_client
import trio

import diskq
from diskq.metrics.prometheus import DiskqCollector

SHOWN = (
    "diskq_accepted_messages_total",
    "diskq_depth_messages",
    "diskq_barrier_seconds_count",
    "diskq_budget_max",
)


async def main() -> None:
    registry, collector = prometheus_client.CollectorRegistry(), DiskqCollector()
    registry.register(collector)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)  # in a thread of its own
    budget = diskq.DiskBudget(64 * 1024 * 1024)
    async with diskq.open_queue("data", "orders", budget=budget) as queue:
        await queue.clear()  # messages of an earlier run
        with collector.watch(queue, "orders", shop="north"), collector.watch(budget, "disk"):
            await queue.send_many([b"tea", b"milk", b"sugar"])
            await queue.receive()
            await queue.send(b"salt", durability="synced")
            page = await trio.to_thread.run_sync(scrape, f"http://127.0.0.1:{server.server_port}/metrics")
    print(*(line for line in page.splitlines() if line.startswith(SHOWN)), sep="\n")
    server.shutdown()
    server.server_close()
    thread.join()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read(), "utf-8")


if __name__ == "__main__":
    Path("data").mkdir(exist_ok=True)
    trio.run(main)
