# Text from outside, for people and logs. Law: it is one line, and controls no terminal.
#
# A destination's error, a file's name, an exception's message or a peer's text may hold anything: a newline
# in it forges a line of the log, and ESC moves the cursor. All such text goes through here before it goes
# into a log record or onto a terminal.

from __future__ import annotations

import traceback

from diskq.storage.callbacks import text_of

__all__ = ["one_line", "text_of", "traceback_lines"]


def one_line(given: object) -> str:
    """Return the text of any object, with unprintable characters escaped as in Python's literals.

    Bytes are decoded as UTF-8. Existing escapes stay as they are. Never raises.
    """
    text = given.decode(errors="backslashreplace") if isinstance(given, bytes) else text_of(given)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def traceback_lines(failure: BaseException) -> str:
    """Return the traceback, each line indented, so that none looks like the beginning of another record."""
    try:
        lines = "".join(traceback.format_exception(failure)).rstrip("\n").split("\n")
    except Exception:
        lines = [type(failure).__name__]  # formatting its message, or its cause's, raised
    return "\n".join(f"  {one_line(line)}" for line in lines)
