from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.priority.record_table import PriorityRecord, RecordTable
from diskq.errors import LineError
from diskq.messages import NULL_TIMESTAMP, JournalMessage, Message
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.json_lines import (
    JOB,
    JOURNAL,
    STREAM,
    Shape,
    entry_of,
    from_lines,
    journal_line,
    priority_line,
    read_lines,
    stream_line,
    to_lines,
)

FULL = Entry(b"hello", b"k", 1_372_932_000_500_000_000, 1, 3, "mail", 0, 5, 7)

timestamps = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)

entries = st.builds(
    Entry,
    st.binary(max_size=20) | st.text(max_size=10).map(str.encode),
    st.none() | st.binary(max_size=10) | st.text(max_size=5).map(str.encode),
    st.none() | timestamps,
    st.none() | st.integers(0, 255),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | texts,
    st.none() | st.integers(0, 999_999),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**64 - 1),
)


def test_a_message_is_one_line_with_what_it_has() -> None:
    assert to_lines(EntryBatch.of([FULL, Entry(b"")])) == (
        b'{"queue":"mail","partition":0,"offset":5,"id":7,"timestamp":"2013-07-04T10:00:00.5Z",'
        b'"type":1,"priority":3,"key":"aw==","value":"aGVsbG8="}\n'
        b'{"value":""}\n'
    )


def test_text_is_for_what_is_utf8_and_base64_for_the_rest() -> None:
    lines = to_lines(EntryBatch.of([Entry('a "ü"\n'.encode(), b"\xff"), Entry(b"\xfe")]), text=True)
    assert lines == '{{"key":"/w==","text":"a \\"ü\\"\\n"}}\n{{"value":"/g=="}}\n'.format().encode()


@given(st.lists(entries, max_size=4), st.booleans())
def test_what_is_written_is_read_back_exactly(written: list[Entry], text: bool) -> None:
    lines = to_lines(EntryBatch.of(written), text=text).split(b"\n")[:-1]
    assert list(from_lines(lines).entries()) == written


# --- the shapes of commands -----------------------------------------------------------------------


def record_of(queue: str, number: int, priority: int, payload: bytes) -> PriorityRecord:
    table = RecordTable(queue)
    table.last_id = number - 1
    table.add([payload], [priority], 0, 1)
    return table.take(1)[0]


def test_a_streams_line_has_go_diskqs_names_and_form() -> None:
    line = stream_line(Message(1, 5, 1_372_932_000_500_000_000, b"customer-00", b"hello"))
    assert line == (
        b'{"PartitionKey":"customer-00","TimestampUTC":"2013-07-04T10:00:00.5Z",'
        b'"Data":"aGVsbG8=","PartitionIndex":1,"Offset":5}'
    )


def test_a_key_that_is_not_text_is_written_in_base64_too() -> None:
    told = json.loads(stream_line(Message(0, 0, 0, b"\xff\0", b"")))
    assert told["PartitionKey"] == "\ufffd\0"
    assert told["PartitionKeyBase64"] == "/wA="


def test_a_journals_line_has_null_where_the_message_has_no_time() -> None:
    assert journal_line(JournalMessage(0, 5, None, 1, b"k", b"")) == (
        b'{"offset":5,"timestamp":null,"type":1,"key":"aw==","value":""}'
    )


@given(st.integers(0, 99), st.integers(0, 2**62), timestamps, st.binary(), st.binary())
def test_a_streams_line_comes_back_to_commands_and_to_tools(
    partition: int, offset: int, timestamp: int, key: bytes, value: bytes
) -> None:
    line = stream_line(Message(partition, offset, timestamp, key, value))
    assert b"\n" not in line
    assert entry_of(line, STREAM) == Entry(value, key, timestamp)  # its place the new stream gives
    assert entry_of(line) == Entry(value, key, timestamp, partition=partition, offset=offset)


# A journal's message has no time where its timestamp is the smallest number.
@given(
    st.integers(0, 2**62),
    st.none() | timestamps.filter(lambda its: its != NULL_TIMESTAMP),
    st.integers(0, 255),
    st.binary(),
    st.binary(),
)
def test_a_journals_line_comes_back_to_commands_and_to_tools(
    offset: int, timestamp: int | None, kind: int, key: bytes, value: bytes
) -> None:
    line = journal_line(JournalMessage(0, offset, timestamp, kind, key, value))
    assert b"\n" not in line
    assert entry_of(line, JOURNAL) == Entry(value, key, timestamp, kind)
    assert entry_of(line) == Entry(value, key, timestamp, kind, offset=offset)


@given(texts, st.integers(1, 2**62), st.integers(-(2**63), 2**63 - 1), st.binary())
def test_a_stores_line_comes_back_to_commands_and_to_tools(
    queue: str, number: int, priority: int, payload: bytes
) -> None:
    line = priority_line(record_of(queue, number, priority, payload))
    assert b"\n" not in line
    assert entry_of(line, JOB) == Entry(payload, priority=priority, queue=queue)
    assert entry_of(line) == Entry(payload, priority=priority, queue=queue, id=number)


@pytest.mark.parametrize("shape", [STREAM, JOURNAL, JOB], ids=["stream", "journal", "job"])
def test_the_example_of_a_shape_can_be_read(shape: Shape) -> None:
    assert entry_of(shape.example.encode(), shape).value == b"hello"


@pytest.mark.parametrize(
    "line, expected",
    [
        (b'{"Data": "aGVsbG8="}', Entry(b"hello")),
        (b'{"Data": null, "PartitionKey": null, "TimestampUTC": null}', Entry(b"")),
        (b'{"Data": "", "PartitionKey": "\\u00e9", "Offset": 7}', Entry(b"", "é".encode())),
        (b'{"Data": "", "PartitionKey": "e", "PartitionKeyBase64": null}', Entry(b"", b"e")),
        (b'{"Data": "", "TimestampUTC": "1970-01-01T01:00:00+01:00"}', Entry(b"", None, 0)),
        (b'\xef\xbb\xbf{"Data": ""}', Entry(b"")),
    ],
)
def test_what_a_streams_line_leaves_out_is_left_open(line: bytes, expected: Entry) -> None:
    assert entry_of(line, STREAM) == expected


@pytest.mark.parametrize(
    "shape, line, reason",
    [
        (STREAM, b"{}", "it has no Data"),
        (STREAM, b'{"Data": "?"}', "its Data is not base64"),
        (STREAM, b'{"Data": "\\u00e9"}', "its Data is not base64"),
        (STREAM, b'{"Data": 5}', "its Data is not text"),
        (STREAM, b'{"Data": "", "PartitionKey": "\\udc80"}', "its PartitionKey is not UTF-8"),
        (STREAM, b'{"Data": "", "PartitionKeyBase64": "?"}', "its PartitionKeyBase64 is not base64"),
        (STREAM, b'{"Data": "", "data": ""}', "it has 'data', which no message has"),
        (STREAM, b'{"Data": "", "value": ""}', "it has 'value', which no message has"),
        (STREAM, b'{"Data": "", "TimestampUTC": true}', "its TimestampUTC is not a time"),
        (JOB, b'{"body": null}', "it has no body"),
        (JOB, b'{"body": "", "data": ""}', "it has both body and data"),
        (JOB, b'{"data": "", "Data": ""}', "it has 'Data', which no message has"),
        (JOB, b'{"data": "", "priority": 1.5}', "its priority is not a whole number"),
        (JOURNAL, b'{"value": "", "offset": 5, "id": 5}', "it has 'id', which no message has"),
    ],
)
def test_a_command_reads_its_own_shape_alone(shape: Shape, line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        entry_of(line, shape)


# --- any shape ------------------------------------------------------------------------------------


def test_a_time_may_have_an_offset_or_be_a_number() -> None:
    assert entry_of(b'{"text":"","timestamp":"1970-01-01T01:00:00.000000001+01:00"}').timestamp_ns == 1
    assert entry_of(b'{"text":"","timestamp":-5}').timestamp_ns == -5


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"", "Expecting value"),
        (b"[]", "not an object"),
        (b"{}", "no value"),
        (b'{"value":""', "delimiter"),
        (b'{"value":"","text":""}', "both text and value"),
        (b'{"text":"","key":"","key_text":""}', "both key_text and key"),
        (b'{"value":"","Data":""}', "a field twice"),
        (b'{"value":"!"}', "not base64"),
        (b'{"value":5}', "not text"),
        (b'{"text":"\\ud800"}', "not UTF-8"),
        (b'{"text":"\xff"}', "invalid start byte"),
        (b'{"text":"","colour":1}', "'colour', which no message has"),
        (b'{"text":"","type":256}', "its type is not a whole number of 0 to 255"),
        (b'{"text":"","type":true}', "its type"),
        (b'{"text":"","priority":9223372036854775808}', "its priority"),
        (b'{"text":"","offset":-1}', "its offset"),
        (b'{"text":"","queue":1}', "its queue is not text"),
        (b'{"text":"","timestamp":"yesterday"}', "'yesterday' is not a time"),
        (b'{"text":"","timestamp":"2013-02-30T00:00:00Z"}', "is not a time"),
        (b'{"text":"","timestamp":"9999-01-01T00:00:00Z"}', "more than 64 bits"),
        (b'{"text":"","timestamp":true}', "not a time"),
        (b"[" * 100_000, "recursion"),
    ],
    ids=str,
)
def test_what_is_no_message_is_refused_by_its_line(line: bytes, reason: str) -> None:
    with pytest.raises(LineError, match=r"stdin, line 8: .*" + reason):
        from_lines([b'{"text":""}', line], 7)


def test_lines_longer_than_a_window_are_read(tmp_path: Path) -> None:
    written = [Entry(b"x" * size) for size in (1, 3 << 20, 2)]
    path = tmp_path / "lines"
    path.write_bytes(to_lines(EntryBatch.of(written))[:-1])
    assert [entry for batch in read_lines(path) for entry in batch.entries()] == written


@pytest.mark.parametrize("shape", [JOB, None])
def test_a_line_of_a_priority_queue_may_call_its_body_data(shape):
    assert entry_of(b'{"priority": 5, "data": "aGk="}', shape) == Entry(b"hi", priority=5)
    assert entry_of(b'{"priority": 5, "body": "aGk="}', shape) == Entry(b"hi", priority=5)
