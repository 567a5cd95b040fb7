"""OpenTelemetry spans through a spool: exports do not wait, and an outage of the collector loses no span.

    pip install 'diskqueue[examples]'
    python examples/spool_otel.py        # destination.py beside it is the server

The exporter puts the SDK's spans, encoded for OTLP, into a bridge to Trio's thread; from there they go into a
spool in the directory spool/otel, and on to a collector in this same program, over OTLP's HTTP. The collector
fails on purpose. 1,000 spans are made. The program prints the fates of the requests, and how many spans the
collector has.

OTLP has no key by which a collector could recognize a repeated request. If an answer is lost, its spans come
again, with the same ids.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Mapping, Sequence

import httpx
import trio
from destination import Destination
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import diskq

SPANS = 1_000

# By OTLP, these may be tried again; any other refusal is final.
TRY_AGAIN = {429, 502, 503, 504}
OPTIONS = diskq.SpoolOptions(
    retry_on=httpx.TransportError,
    max_messages=10,
    backoff_initial=0.01,
    backoff_max=0.2,
    backoff_jitter=0.01,
)


class SpoolSpanExporter(SpanExporter):
    """For a BatchSpanProcessor, whose thread calls `export`."""

    def __init__(self, sender: diskq.ThreadSender[bytes]) -> None:
        self._sender = sender

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            self._sender.put_nowait(encode_spans(spans).SerializeToString())
        except queue.Full:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS


async def main() -> None:
    collector = Collector()
    with Destination(collector.accept, never="500") as destination:
        async with httpx.AsyncClient(base_url=destination.url, timeout=0.2) as client:

            async def post(batch: diskq.Batch) -> None:
                # By protobuf's rules, concatenated requests are one request with all their spans.
                headers = {"Content-Type": "application/x-protobuf"}
                response = await client.post("/v1/traces", content=b"".join(batch), headers=headers)
                if response.status_code in TRY_AGAIN:
                    after = response.headers.get("Retry-After")
                    raise diskq.Retry(f"HTTP {response.status_code}", after=float(after) if after else None)
                if response.is_error:
                    raise diskq.Permanent(f"HTTP {response.status_code}")

            async with diskq.open_spool("spool/otel", post, options=OPTIONS) as spool:
                async with diskq.open_thread_sender(spool) as sender:
                    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
                    exporter = SpoolSpanExporter(sender)
                    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=10))
                    tracer = provider.get_tracer("diskq.example")
                    for number in range(SPANS):
                        with tracer.start_as_current_span("order", attributes={"number": number}):
                            await trio.lowlevel.checkpoint()
                    await trio.to_thread.run_sync(provider.shutdown)  # exports everything
                await spool.drained()

                for fate, count in destination.fates.most_common():
                    print(f"{count:4} requests: {fate}")
                print(f"{len(collector.spans):,} spans are there, {collector.repeated} of them came again")
                print(f"{len(await spool.dead_letters.list())} dead letters")


class Collector:
    """A collector's handling of OTLP requests."""

    def __init__(self) -> None:
        self.spans: set[bytes] = set()
        self.repeated = 0

    def accept(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        assert headers["Content-Type"] == "application/x-protobuf"
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.repeated += span.span_id in self.spans
                    self.spans.add(span.span_id)
        return 200, b""


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # a spool logs failures; here they are on purpose
    trio.run(main)
