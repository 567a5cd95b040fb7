# What a person sees. Law: tables and progress only at a terminal, and if rich is installed
# (`pip install 'diskqueue[cli]'`); in a pipe plain lines, which are always the same.

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from diskq.cli.core.stdio import OutputStream, stderr, stdin, stdout
from diskq.errors import NotFoundError
from diskq.storage.one_line import one_line, text_of

__all__ = [
    "as_one_is_missing",
    "asked",
    "has_rich",
    "note",
    "pass_on",
    "preview",
    "printable",
    "progress",
    "say",
    "sentence",
    "show_table",
    "shown",
    "status",
    "warnings_left_out",
    "warnings_on_stderr",
]


_PREVIEW = 60  # characters


def note(text: str) -> None:
    """Print one line for the person on stderr."""
    with _completed_anyway():
        stderr.print(f"diskq: {one_line(text)}", flush=True)


def pass_on(said: bytes) -> None:
    """Print on stderr what another program has printed there."""
    with _completed_anyway():
        stderr.write(said)


@contextmanager
def _completed_anyway() -> Iterator[None]:
    """Go on where stderr cannot be written to: nobody can be told, but the exit code says it."""
    try:
        yield
    except OSError:
        stderr.drop()
        stderr.has_failed = True


def say(text: str) -> None:
    """Print one line of output; control characters in it are escaped."""
    stdout.print(one_line(text))


def asked(question: str) -> bool:
    """Ask at the terminal. True if the answer is yes."""
    stderr.print(f"{one_line(question)} [y/N] ", end="", flush=True)
    return stdin.read_line().strip().lower() in ("y", "yes")


def sentence(failure: Exception) -> str:
    """Return the text of an error, in one line."""
    if isinstance(failure, OSError) and failure.strerror:
        text = f"{failure.filename}: {failure.strerror}" if failure.filename else failure.strerror
    else:
        text = text_of(failure)
    if isinstance(failure, NotFoundError):
        text += as_one_is_missing(failure.path)
    elif isinstance(failure, FileNotFoundError) and isinstance(failure.filename, str):
        text += as_one_is_missing(failure.filename)
    return one_line(" ".join(text.split()))


def as_one_is_missing(path: str) -> str:
    """Return the words that name the first missing directory above `path`; none if its parent is there."""
    above = os.path.dirname(os.path.normpath(path))
    missing = ""
    while above and not os.path.lexists(above):
        missing, above = above, os.path.dirname(above)
    return missing and f", as there is no directory {shown(missing)}"


def printable(data: bytes) -> str:
    """Return it as text that cannot control a terminal: what is not printable is escaped."""
    return one_line(data)


def preview(data: bytes) -> str:
    """Return the start of it, as `printable`."""
    text = printable(data[: _PREVIEW + 1])
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…"


def shown(name: str) -> str:
    """Return a file name, which may be any bytes, as `printable`."""
    return printable(os.fsencode(name))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[str] = ()) -> None:
    """Print a table on stdout. `numeric` columns are aligned to the right."""
    rows = [list(map(one_line, row)) for row in rows]
    if has_rich(stdout):
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for column in columns:
            table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        stdout.flush()
        Console(file=stdout.as_text_file()).print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        stdout.print("  ".join(cells).rstrip())


@contextmanager
def progress(
    what: str, total: int | None, *, is_wanted: bool, of_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr. Call what it gives with the amount done; `total` None is unknown.

    With `of_bytes` it shows sizes, and sizes per second.
    """
    if not is_wanted or not has_rich(stderr):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    counted: tuple[ProgressColumn, ...] = (
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.completed:,}"),
    )
    if of_bytes:
        counted = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *counted, TimeElapsedColumn())
    console = Console(file=stderr.as_text_file())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(one_line(what), total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr that changes. Call what it gives with the next text."""
    if not has_rich(stderr):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    line = Spinner("dots", Text(one_line(text)))
    # A duplicate of the terminal's descriptor: the line stays there if stderr is replaced. stdout is not
    # redirected: what is printed on it meanwhile would come out here.
    with (
        stderr.duplicate() as terminal,
        Live(line, console=Console(file=terminal), transient=True, redirect_stdout=False),
    ):
        yield lambda text: line.update(text=Text(one_line(text)))


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Print warnings that diskq logs (mostly repairs) as notes."""
    handler = _Lines(logging.WARNING)
    logger = logging.getLogger("diskq")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def warnings_left_out() -> Iterator[None]:
    """Suppress warnings in the block, which reports the same facts itself."""
    logger = logging.getLogger("diskq")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # also for child loggers; `disabled` is for this one alone
    try:
        yield
    finally:
        logger.setLevel(before)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


def has_rich(stream: OutputStream) -> bool:
    """True if `stream` is a terminal that rich can draw on."""
    return stream.is_smart() and importlib.util.find_spec("rich") is not None
