# A line of JSON that is no message is reported by its number, for any fault.

from __future__ import annotations

import pytest

from diskq.cli.core.json_input import message_of
from diskq.cli.core.parsing import CommandError
from diskq.tools.entries import Entry
from diskq.tools.json_lines import STREAM


@pytest.mark.parametrize(
    "line, told",
    [
        (b"", "Expecting value"),
        (b"hello", "Expecting value"),
        (b"[]", "it is not an object"),
        (b"{}", "it has no Data"),
        (b'{"Data": "", "TimestampUTC": "2013-07-04T10:00:00"}', "in which time zone"),
        (b'{"Data": "\xff"}', "can't decode"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_message_is_reported_with_its_line(line: bytes, told: str) -> None:
    with pytest.raises(CommandError, match=f"^line 7 is no message: .*{told}.*; one is .*Data"):
        message_of(line, 7, STREAM)


def test_a_time_is_written_as_on_the_command_line() -> None:
    line = b'{"Data": "", "TimestampUTC": "1970-01-01 01:00 Europe/Berlin"}'
    assert message_of(line, 1, STREAM) == Entry(b"", None, 0)
