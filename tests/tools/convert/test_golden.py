# What peers left, converted where it lies. Law: every message of their own accounts is found in what it
# became, whatever that is.

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from diskq._native.journal.codec import MAX_KEY
from diskq.storage.fs import OsFileSystem
from diskq.tools.convert.conversion import convert
from diskq.tools.convert.field_mapping import ConvertOptions, Format
from diskq.tools.convert.sources import entries
from diskq.tools.stores import Store
from tests.golden.journals import HERE as SEJ
from tests.golden.journals import JOURNALS
from tests.golden.journals import case as journal_case
from tests.golden.streams import HERE as GO_DISKQ
from tests.golden.streams import STREAMS
from tests.golden.streams import case as stream_case
from tests.golden.test_nsq import ALL as QUEUES
from tests.golden.test_nsq import HERE as NSQ
from tests.golden.test_taskflux import HERE as TASKFLUX
from tests.golden.test_taskflux import OPENED
from tests.tools.stores import FORMATS, at

FS = OsFileSystem()
Told = tuple[Any, ...]

to_each = pytest.mark.parametrize("to", FORMATS)


def became(store: Store, path: Path, to: Format, *names: str) -> Counter[Told]:
    """What is there after a conversion: of each message its length, its hash, and these fields."""
    convert(store, path, to, ConvertOptions(lossy=True))
    return Counter(
        (len(entry.value), hashlib.sha256(entry.value).hexdigest(), *(getattr(entry, name) for name in names))
        for source in at(FS, to, str(path))
        for entry in entries(source)
    )


def told(messages: Iterable[Any], *names: str) -> Counter[Told]:
    return Counter(
        (message.size, message.sha256, *(getattr(message, name) for name in names)) for message in messages
    )


@to_each
@pytest.mark.parametrize("case", QUEUES, ids=str)
def test_a_queue_of_go_diskqueue(tmp_path: Path, case: Any, to: Format) -> None:
    store = Store("queue", str(NSQ / case.folder / "data"), case.name)
    wanted = Counter((message["len"], message["sha256"]) for message in case.messages)
    assert became(store, tmp_path / "to", to) == wanted


@to_each
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_go_diskq(tmp_path: Path, name: str, to: Format) -> None:
    store = Store("stream", str(GO_DISKQ / name / "data"))
    messages = [message for some in stream_case(name).messages.values() for message in some]
    fields = {"triplet": ["key", "timestamp_ns", "partition"], "sej": ["key", "timestamp_ns"]}
    fields["jsonl"] = [*fields["triplet"], "offset"]
    names = fields.get(to, [])
    if to == "sej":  # which has no place for longer keys
        messages = [each if len(each.key) <= MAX_KEY else each._replace(key=b"") for each in messages]
    assert became(store, tmp_path / "to", to, *names) == told(messages, *names)


@to_each
@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_of_sej(tmp_path: Path, name: str, to: Format) -> None:
    store = Store("journal", str(SEJ / name / "data"))
    found = {entry.offset for entry in entries(store)}
    messages = [message for message in journal_case(name).put if message.offset in found]
    assert len(messages) == len(found) >= len(journal_case(name).scanned)
    fields = {"triplet": ["key"], "sej": ["key", "timestamp_ns", "type"]}
    fields["jsonl"] = [*fields["sej"], "offset"]
    names = fields.get(to, [])
    assert became(store, tmp_path / "to", to, *names) == told(messages, *names)


@pytest.mark.parametrize("to", ["taskflux", "nsq", "jsonl"])
@pytest.mark.parametrize(
    "case", [case for case in OPENED.values() if case["files"]][::6], ids=lambda c: c["id"]
)
def test_a_store_of_taskflux(tmp_path: Path, case: Any, to: Format) -> None:
    store = Store("jobs", str(TASKFLUX / "cases" / case["id"]))
    records = [
        (name, record["key"], bytes.fromhex(record["payload"]))
        for name, queue in case["diskq"]["state"].items()
        for record in queue["records"]
    ]
    if to == "nsq":
        wanted: Counter[Told] = Counter(
            (len(data), hashlib.sha256(data).hexdigest()) for _, _, data in records
        )
        assert became(store, tmp_path / "to", to) == wanted
    else:
        wanted = Counter((len(data), hashlib.sha256(data).hexdigest(), *its) for *its, data in records)
        assert became(store, tmp_path / "to", to, "queue", "priority") == wanted


def test_looking_has_changed_nothing_where_they_lie() -> None:
    assert not list(NSQ.rglob(".diskq")) + list(SEJ.rglob(".diskq")) + list(GO_DISKQ.rglob(".diskq"))
