"""OpenTelemetry spans through a spool: exporting waits for nobody, and an outage of the collector loses none.

    pip install 'diskq[examples]'
    python examples/spool_otel.py

The exporter leaves what the SDK gives it, encoded for OTLP, in a bridge to Trio's thread; from there it goes
into a spool in the directory spool/otel, and on to a collector in this same program, over OTLP's HTTP. The
collector fails on purpose. 1,000 spans are made. It prints what became of the requests, and how many spans
the collector has got.

OTLP has no key by which a collector could know a request that it has already. Where the answer is lost, its
spans come again, with the same ids.
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

# As OTLP has it: these may be tried again, any other refusal is final.
TRY_AGAIN = {429, 502, 503, 504}
OPTIONS = diskq.SpoolOptions(
    retry_on=httpx.TransportError,
    max_items=10,
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
    with Destination(collector.accept, never="500") as far_end:
        async with httpx.AsyncClient(base_url=far_end.url, timeout=0.2) as client:

            async def post(batch: diskq.Batch) -> None:
                # Requests one behind the other are one request with all their spans: so protobuf has it.
                headers = {"Content-Type": "application/x-protobuf"}
                response = await client.post("/v1/traces", content=b"".join(batch), headers=headers)
                if response.status_code in TRY_AGAIN:
                    after = response.headers.get("Retry-After")
                    raise diskq.Retry(f"HTTP {response.status_code}", after=float(after) if after else None)
                if response.is_error:
                    raise diskq.Permanent(f"HTTP {response.status_code}")

            async with diskq.open_spool("spool/otel", post, OPTIONS) as spool:
                async with diskq.from_threads(spool) as sender:
                    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
                    exporter = SpoolSpanExporter(sender)
                    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=10))
                    tracer = provider.get_tracer("diskq.example")
                    for number in range(SPANS):
                        with tracer.start_as_current_span("order", attributes={"number": number}):
                            await trio.lowlevel.checkpoint()
                    await trio.to_thread.run_sync(provider.shutdown)  # has everything exported
                await spool.drained()

                for fate, count in far_end.fates.most_common():
                    print(f"{count:4} requests: {fate}")
                print(f"{len(collector.spans):,} spans are there, {collector.repeated} of them came again")
                print(f"{len(await spool.dead_letters.list())} dead letters")


class Collector:
    """What a collector does with OTLP requests."""

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
    logging.basicConfig(level=logging.ERROR)  # a spool logs what goes wrong; here it is meant to
    trio.run(main)
