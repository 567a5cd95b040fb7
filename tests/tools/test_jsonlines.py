from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.cli.streamjson import as_json as stream_line
from diskq.errors import LineError
from diskq.messages import Message
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.jsonlines import entry_of, from_lines, read_lines, to_lines

FULL = Entry(b"hello", b"k", 1_372_932_000_500_000_000, 1, 3, "mail", 0, 5, 7)

entries = st.builds(
    Entry,
    st.binary(max_size=20) | st.text(max_size=10).map(str.encode),
    st.none() | st.binary(max_size=10) | st.text(max_size=5).map(str.encode),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(0, 255),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
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


def test_a_line_of_a_stream_is_understood() -> None:
    line = stream_line(Message(2, 9, 1_500, b"\xffkey", b"value"))
    assert entry_of(line) == Entry(b"value", b"\xffkey", 1_500, partition=2, offset=9)


def test_a_line_of_a_store_is_understood() -> None:
    line = b'{"queue":"mail","id":7,"priority":5,"data":"aGVsbG8="}'
    assert entry_of(line) == Entry(b"hello", priority=5, queue="mail", id=7)


def test_a_time_may_have_an_offset_or_be_a_number() -> None:
    assert entry_of(b'{"text":"","timestamp":"1970-01-01T01:00:00.000000001+01:00"}').timestamp_ns == 1
    assert entry_of(b'{"text":"","timestamp":-5}').timestamp_ns == -5


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"", "Expecting value"),
        (b"[]", "no object"),
        (b"{}", "no value"),
        (b'{"value":""', "delimiter"),
        (b'{"value":"","text":""}', "both text and value"),
        (b'{"text":"","key":"","key_text":""}', "both key_text and key"),
        (b'{"value":"","Data":""}', "the same twice"),
        (b'{"value":"!"}', "no base64"),
        (b'{"value":5}', "no text"),
        (b'{"text":"\\ud800"}', "no UTF-8"),
        (b'{"text":"\xff"}', "invalid start byte"),
        (b'{"text":"","colour":1}', "'colour', which no message has"),
        (b'{"text":"","type":256}', "its type is no whole number of 0 to 255"),
        (b'{"text":"","type":true}', "its type"),
        (b'{"text":"","priority":9223372036854775808}', "its priority"),
        (b'{"text":"","offset":-1}', "its offset"),
        (b'{"text":"","queue":1}', "its queue is no text"),
        (b'{"text":"","timestamp":"yesterday"}', "'yesterday' is no time"),
        (b'{"text":"","timestamp":"2013-02-30T00:00:00Z"}', "is no time"),
        (b'{"text":"","timestamp":"9999-01-01T00:00:00Z"}', "more than 64 bits"),
        (b'{"text":"","timestamp":true}', "no time"),
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
