# Messages that come as lines of JSON. Law: times are written as on the command line.

from __future__ import annotations

import argparse

from diskq.cli.core.parsing import CommandError
from diskq.cli.core.times import moment
from diskq.tools.entries import Entry
from diskq.tools.json_lines import Shape, entry_of

__all__ = ["message_of"]


def message_of(line: bytes, number: int, shape: Shape) -> Entry:
    """Return the message of the `number`th line. Raises CommandError with that number if there is none."""
    try:
        return entry_of(line, shape, moment)
    except (ValueError, RecursionError, argparse.ArgumentTypeError) as failure:
        raise CommandError(f"line {number} is no message: {failure}; one is {shape.example}") from None
