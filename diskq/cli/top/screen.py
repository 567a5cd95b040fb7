# `diskq top` at a terminal: drawing, and keys. Law: drawing reads nothing but what it is given; it shows the
# columns and rows that fit, the most important ones first.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diskq.cli.core.terminal import printable
from diskq.cli.top.rows import COLUMNS, NUMERIC, SORTS, cells, part_cells, sort_key, totals
from diskq.tools.stores import Store
from diskq.tools.watch.watch import WatchReading

__all__ = ["Screen"]

_HELP = "q quit   s sort   p pause   ↑↓ choose   enter unfold"
_GAP = 2
_BARS = 20
_MOST_PROBLEMS = 5
# Lines for the title, the column names, the sum, the keys.
_FRAME = 4
_CHOSEN = Style(reverse=True)
_STYLES = {"kind": "cyan", "in/s": "green", "out/s": "magenta", "lag": "yellow", "problems": "red"}


@dataclass(slots=True)
class Screen:
    """The screen. Set `readings`, call `press` for each key, print it with rich."""

    interval: float
    """Seconds between readings, as shown in the title."""
    readings: Sequence[WatchReading] = ()
    bare: Sequence[str] = ()
    """Paths that hold no store yet."""
    clock: str = ""
    """The time of the readings, as text."""
    is_paused: bool = False
    is_over: bool = False
    """True after the key that ends it."""
    column: str = SORTS[0]
    """The column by which it is sorted."""
    chosen: int = 0
    unfolded: set[Store] = field(default_factory=set)

    def press(self, key: str) -> None:
        """Handle a key: a character, or "up", "down", "left", "right", "enter"."""
        match key:
            case "q" | "Q":
                self.is_over = True
            case "s" | "S":
                step = 1 if key == "s" else -1
                self.column = SORTS[(SORTS.index(self.column) + step) % len(SORTS)]
            case "p" | " ":
                self.is_paused = not self.is_paused
            case "up" | "k":
                self.chosen = max(0, self.chosen - 1)
            case "down" | "j":
                self.chosen = min(len(self.readings) - 1, self.chosen + 1)
            case "enter":
                self._unfold(self._chosen_store not in self.unfolded)
            case "right":
                self._unfold(True)
            case "left":
                self._unfold(False)

    @property
    def _sorted(self) -> list[WatchReading]:
        return sorted(self.readings, key=sort_key(self.column))

    @property
    def _chosen_store(self) -> Store | None:
        there = self._sorted
        return there[min(self.chosen, len(there) - 1)].store if there else None

    def _unfold(self, is_wanted: bool) -> None:
        store = self._chosen_store
        if store is not None:
            (self.unfolded.add if is_wanted else self.unfolded.discard)(store)

    # --- drawing ----------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        rows, details = self._rows(), self._details() + self._absent()
        total = totals(self.readings, _BARS)
        columns = fitting([row for row, _ in rows] + [total], width)
        yield self._title(width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
        for name in columns:
            title = f"{name} ▾" if name == self.column else name
            table.add_column(
                Text(title),
                justify="right" if name in NUMERIC else "left",
                no_wrap=True,
                overflow="ellipsis",
                style=_STYLES.get(name, ""),
            )
        for row, is_chosen in rows[_window(rows, height - _FRAME - len(details))]:
            table.add_row(
                *(Text(row.get(name, "")) for name in columns), style=_CHOSEN if is_chosen else None
            )
        table.add_row(*(Text(total.get(name, "")) for name in columns), style="bold")
        yield table
        for line in details:
            yield Text(line[:width], no_wrap=True)
        yield Text(_HELP, style="dim", no_wrap=True, overflow="ellipsis")

    def _title(self, width: int) -> Text:
        state = "paused" if self.is_paused else f"every {self.interval:g} s"
        return Text(f"diskq top  {self.clock}  {state}  by {self.column}"[:width], style="bold")

    def _rows(self) -> list[tuple[Mapping[str, str], bool]]:
        """Return the lines of the table, and whether each is the chosen one."""
        rows: list[tuple[Mapping[str, str], bool]] = []
        chosen = self._chosen_store
        for reading in self._sorted:
            rows.append((cells(reading, _BARS), reading.store == chosen))
            sample = reading.sample
            if sample is not None and reading.store in self.unfolded:
                rows += [(part_cells(reading, part), False) for part in sample.parts]
        return rows

    def _details(self) -> list[str]:
        """Return the holder and the problems of the chosen store, if it is unfolded."""
        chosen = self._chosen_store
        sample = next((each.sample for each in self.readings if each.store == chosen), None)
        if sample is None or chosen not in self.unfolded:
            return []
        holder = [f"open in {sample.holder}"] if sample.holder is not None else []
        return [f"  {printable(text.encode())}" for text in (*holder, *sample.problems[:_MOST_PROBLEMS])]

    def _absent(self) -> list[str]:
        paths = ", ".join(printable(path.encode()) for path in self.bare)
        return [f"nothing yet at {paths}"] if paths else []


def fitting(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the columns that fit into `width` characters, in order; those of rank 1 are always there."""
    kept = list(COLUMNS)
    wide = {
        column.name: max(len(column.name) + 2, *(len(row.get(column.name, "")) for row in rows))
        for column in kept
    }
    while sum(wide[column.name] + _GAP for column in kept) - _GAP > width:
        last = max(kept, key=lambda column: column.rank)
        if last.rank == 1:
            break
        kept.remove(last)
    return [column.name for column in kept]


def _window(rows: Sequence[tuple[Mapping[str, str], bool]], height: int) -> slice:
    """Return a slice of `height` lines that contains the chosen one."""
    at = next((number for number, (_, is_chosen) in enumerate(rows) if is_chosen), 0)
    start = max(0, min(at - height // 2, len(rows) - height))
    return slice(start, start + max(1, height))
