# What pages show for Sentry and OpenTelemetry, with the real SDKs. Law: what was captured arrives, also where
# the other side fails at first; what is refused is a dead letter.

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.documents import ROOT, blocks
from tests.drop_ins.servers import served

LONG = 30.0


class Collector:
    """What a server is to answer: `statuses`, in turn, then 200."""

    url = ""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.bodies: list[bytes] = []
        """Those that it has accepted."""

    def answer(self, _: str, body: bytes) -> tuple[int, bytes]:
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.bodies.append(body)
        return status, b""


@pytest.fixture
def collector() -> Iterator[Collector]:
    there = Collector()
    with served(there.answer) as there.url:
        yield there


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(page: str, name: str) -> ModuleType:
    """The module that a page shows."""
    (block,) = (each for each in blocks(ROOT / "docs" / "howto" / page) if each.info == f"python {name}.py")
    module = ModuleType(name)
    exec(compile(block.text, f"{name}.py", "exec"), module.__dict__)
    return module


@pytest.mark.usefixtures("here")
def test_an_event_of_sentry_arrives_when_sentry_is_back(collector: Collector) -> None:
    sentry = pytest.importorskip("sentry_sdk")
    transport = shown("sentry.md", "sentry_spool").SpoolTransport
    collector.statuses = [503, 502]
    dsn = collector.url.replace("://", "://key@") + "/1"
    client = sentry.Client(dsn=dsn, transport=transport, default_integrations=False)
    with sentry.new_scope() as scope:
        scope.set_client(client)
        sentry.capture_message("the first")
        client.flush(LONG)
        collector.statuses.append(400)
        sentry.capture_message("the second")
        client.flush(LONG)
        (letter,) = client.transport.spool.dead_letters.list()
        client.close()
    (body,) = collector.bodies
    texts = [json.loads(each.splitlines()[2])["message"] for each in (body, letter.body)]
    assert texts == ["the first", "the second"]


@pytest.mark.usefixtures("here")
def test_a_span_arrives_when_the_collector_is_back(collector: Collector) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    exporting = pytest.importorskip("opentelemetry.sdk.trace.export")
    requests = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    exporter = shown("opentelemetry.md", "otel_spool").SpoolSpanExporter("spans", collector.url)
    collector.statuses = [503, 429]
    provider = trace.TracerProvider()
    provider.add_span_processor(exporting.SimpleSpanProcessor(exporter))
    with provider.get_tracer("shop").start_as_current_span("order"):
        assert collector.bodies == []
    assert provider.force_flush(int(LONG * 1000))
    assert exporter.spool.drained(LONG)
    provider.shutdown()
    (body,) = collector.bodies
    (resource,) = requests.ExportTraceServiceRequest.FromString(body).resource_spans
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["order"]
