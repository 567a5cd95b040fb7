# What `read` writes `write` takes, and it is the same message.

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.cli.parsing import CommandError
from diskq.cli.streamjson import as_json, fields_of
from diskq.messages import Message

timestamps = st.integers(-(2**63), 2**63 - 1)


def test_a_message_has_go_diskqs_names_and_form():
    line = as_json(Message(1, 5, 1_372_932_000_500_000_000, b"customer-00", b"hello"))
    assert line == (
        b'{"PartitionKey":"customer-00","TimestampUTC":"2013-07-04T10:00:00.5Z",'
        b'"Data":"aGVsbG8=","PartitionIndex":1,"Offset":5}'
    )


@given(st.binary(), timestamps, st.binary())
def test_every_message_comes_back(key, timestamp, value):
    line = as_json(Message(0, 0, timestamp, key, value))
    assert b"\n" not in line
    assert fields_of(line, 1) == (key, value, timestamp)


def test_a_key_that_is_no_text_is_told_beside_what_can_be_shown():
    told = json.loads(as_json(Message(0, 0, 0, b"\xff\0", b"")))
    assert told["PartitionKey"] == "\ufffd\0"
    assert told["PartitionKeyBase64"] == "/wA="


@pytest.mark.parametrize(
    "line, expected",
    [
        (b'{"Data": "aGVsbG8="}', (None, b"hello", None)),
        (b'{"Data": null, "PartitionKey": null, "TimestampUTC": null}', (None, b"", None)),
        (b'{"Data": "", "PartitionKey": "\\u00e9", "Offset": 7}', ("é".encode(), b"", None)),
        (b'{"Data": "", "TimestampUTC": "1970-01-01T01:00:00+01:00"}', (None, b"", 0)),
    ],
)
def test_what_a_line_leaves_out_is_left_open(line, expected):
    assert fields_of(line, 1) == expected


@pytest.mark.parametrize(
    "line, told",
    [
        (b"", "Expecting value"),
        (b"hello", "Expecting value"),
        (b"[]", "it is no object"),
        (b"{}", "it has no Data"),
        (b'{"Data": "?"}', "its Data is no base64"),
        (b'{"Data": 5}', "its Data is no text"),
        (b'{"Data": "", "PartitionKey": "\\udc80"}', "surrogates"),
        (b'{"Data": "", "data": ""}', "it has 'data', which no message has"),
        (b'{"Data": "", "TimestampUTC": "2013-07-04T10:00:00"}', "in which time zone"),
        (b'{"Data": "\xff"}', "can't decode"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_message_is_told_with_its_line(line, told):
    with pytest.raises(CommandError, match=f"^line 7 is no message: .*{told}"):
        fields_of(line, 7)
