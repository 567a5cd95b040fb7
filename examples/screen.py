"""The output of the demos: in colour at a terminal, in plain lines elsewhere."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Generator


class Plain:
    """The report in plain lines."""

    @contextlib.contextmanager
    def watching(self, rows: int, *what: str) -> Generator[Callable[..., None]]:
        """Give a function to be called with the number of rows of each kind."""
        yield lambda *counts: None

    def title(self, text: str) -> None:
        print(text)

    def section(self, name: str, *lines: str) -> None:
        print()
        for index, line in enumerate(lines):
            print(f"  {'' if index else name:9}{line}")

    def verdict(self, text: str, *, is_good: bool) -> None:
        print(f"\n{text}")


class Rich(Plain):
    """The same in colour, with progress while it runs."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)

    @contextlib.contextmanager
    def watching(self, rows: int, *what: str) -> Generator[Callable[..., None]]:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("  {task.description:14}"), BarColumn(40), TextColumn("{task.completed:,} rows")
        with Progress(*columns, console=self._console, transient=True) as bars:
            tasks = [bars.add_task(each, total=rows) for each in what]

            def show(*counts: int) -> None:
                for task, count in zip(tasks, counts, strict=True):
                    bars.update(task, completed=min(count, rows))

            yield show

    def title(self, text: str) -> None:
        self._console.print(f"[bold]{text}[/]")

    def section(self, name: str, *lines: str) -> None:
        from rich.markup import escape

        self._console.print()
        for index, line in enumerate(lines):
            label = "" if index else name
            # Numbers are highlighted.
            shown = re.sub(
                r"(?<![\w.])[0-9][0-9,.]*(?= (rows|of|m?s\b|missing|altered))",
                r"[cyan]\g<0>[/]",
                escape(line),
            )
            self._console.print(f"  [bold]{label:9}[/]{shown}")

    def verdict(self, text: str, *, is_good: bool) -> None:
        self._console.print(f"\n[bold {'green' if is_good else 'red'}]{text}[/]")


def screen() -> Plain:
    with contextlib.suppress(ImportError):
        if sys.stdout.isatty():
            return Rich()
    return Plain()


def rate(count: int, seconds: float) -> str:
    return f"{count / max(seconds, 1e-3):,.0f} rows/s"
