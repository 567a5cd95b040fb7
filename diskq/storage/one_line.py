# Text of others, where a person or a log reads it. Law: it is one line, and commands no terminal.
#
# A destination's error, a file's name, an exception's message or a peer's word may hold anything: with a
# newline it writes a line of log that nobody logged, with ESC it moves the cursor. Whoever puts such text
# into a log record or onto a terminal puts it through here.

from __future__ import annotations

import traceback

from diskq.storage.callbacks import text_of

__all__ = ["one_line", "text_of", "traceback_lines"]


def one_line(given: object) -> str:
    """The text of anything, in which all that is not printable is escaped as in Python's literals.

    Bytes are read as UTF-8. What was escaped already stays as it is. Never raises.
    """
    text = given.decode(errors="backslashreplace") if isinstance(given, bytes) else text_of(given)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def traceback_lines(failure: BaseException) -> str:
    """Its traceback, each line indented: none of them looks like the beginning of another record."""
    try:
        lines = "".join(traceback.format_exception(failure)).rstrip("\n").split("\n")
    except Exception:
        lines = [type(failure).__name__]  # its message, or that of what caused it, cannot be had
    return "\n".join(f"  {one_line(line)}" for line in lines)
