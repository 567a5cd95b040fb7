# The report's pictures. Law: one system has one colour in all of them; diskq is thick, the machine's limit
# dotted, a peer thin.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.curves import Curves, is_limit, is_ours
from benchmarks.report import save

__all__ = ["bars", "latencies", "lines"]

Named = tuple[str, Mapping[str, float]]
"""What was measured, and its quantiles."""

_COLORS = {
    "queue": "#1f4e79",
    "queue send": "#1f4e79",
    "queue receive": "#1f4e79",
    "queue send_many": "#2e86de",
    "queue receive_many": "#2e86de",
    "stream": "#138d75",
    "stream send_many": "#138d75",
    "stream receive_many": "#138d75",
    "stream columns": "#52be80",
    "journal": "#7d3c98",
    "journal send_many": "#7d3c98",
    "journal receive_many": "#7d3c98",
    "journal columns": "#bb8fce",
    "priority": "#b7950b",
    "go-diskqueue": "#00add8",
    "go-diskqueue, as bounded": "#7fd6ec",
    "queuelib": "#a04000",
    "sqlite3": "#5d6d7e",
    "LMDB": "#c0392b",
    "RocksDB": "#ff8c00",
    "diskcache": "#f5b041",
    "persist-queue": "#a9cce3",
    "litequeue": "#b2babb",
    "localqueue": "#6e2c00",
    "Redis": "#ff5fa2",
    "NATS": "#27ae60",
}
_LIMITS = {
    "write": "#000000",
    "writev": "#555555",
    "memcpy": "#999999",
    "fdatasync": "#000000",
    "read": "#000000",
}


def lines(curves: Curves, path: Path, *, figure: str, title: str, x: str, y: str) -> None:
    """A line for each system over the points; its ends are least and most."""
    pyplot = _pyplot()
    canvas, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    places = {point: place for place, point in enumerate(curves.points)}
    for system, measured in curves.of.items():
        found = [(places[point], figures[figure]) for point, figures in measured.items() if figure in figures]
        found = [
            (place, spread) for place, spread in sorted(found, key=lambda each: each[0]) if spread.median > 0
        ]
        if not found:
            continue
        medians = [spread.median for _, spread in found]
        spreads = [
            [(spread.median - spread.least) for _, spread in found],
            [(spread.most - spread.median) for _, spread in found],
        ]
        axes.errorbar([place for place, _ in found], medians, yerr=spreads, label=system, **_style(system))
    axes.set_xticks(range(len(curves.points)), curves.points)
    axes.set_yscale("log")
    _finish(pyplot, canvas, axes, path, title, x, y)


def bars(curves: Curves, path: Path, *, figure: str, title: str, x: str) -> None:
    """A bar for each system at the one point that there is."""
    pyplot = _pyplot()
    found = [(system, figures[figure]) for system, each in curves.of.items() for figures in each.values()]
    canvas, axes = pyplot.subplots(figsize=(9, 1.2 + 0.3 * len(found)), layout="constrained")
    for place, (system, spread) in enumerate(found):
        axes.barh(place, spread.median, height=0.65, color=_color(system))
        axes.plot([spread.least, spread.most], [place, place], color="black", linewidth=1)
    axes.set_yticks(range(len(found)), [system for system, _ in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    _finish(pyplot, canvas, axes, path, title, x, "", has_legend=False)


def latencies(panels: Mapping[str, Sequence[tuple[Named, Named | None]]], path: Path, *, title: str) -> None:
    """A panel for each name: ours and its peer in one colour, the peer's line broken. Microseconds."""
    pyplot = _pyplot()
    canvas, every = pyplot.subplots(
        1, len(panels), figsize=(5.5 * len(panels), 5.5), layout="constrained", sharey=True, squeeze=False
    )
    colors = pyplot.get_cmap("tab10").colors
    for axes, (panel, pairs) in zip(every[0], panels.items(), strict=True):
        ticks = list(dict.fromkeys(tick for (_, told), _ in pairs for tick in told))
        for number, pair in enumerate(pairs):
            for is_peer, each in enumerate(pair):
                if each is None:
                    continue
                name, told = each
                axes.plot(
                    [ticks.index(tick) for tick in told],
                    list(told.values()),
                    label=name,
                    color=colors[number % len(colors)],
                    linestyle="--" if is_peer else "-",
                    linewidth=1.2 if is_peer else 2.2,
                    marker="o",
                    markersize=3,
                )
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_yscale("log")
        axes.set_title(panel, fontsize=10)
        axes.set_ylabel("µs")
        axes.grid(which="major", alpha=0.25)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)
    canvas.suptitle(title, fontsize=11)
    save(canvas, path)
    pyplot.close(canvas)


def _style(system: str) -> dict[str, Any]:
    style = {"color": _color(system), "marker": "o", "markersize": 3, "elinewidth": 0.8, "capsize": 2}
    if is_limit(system):
        return style | {"linestyle": ":", "linewidth": 1.6}
    return style | {"linestyle": "-", "linewidth": 2.4 if is_ours(system) else 1.0}


def _color(system: str) -> str:
    return _LIMITS[system.split()[1]] if is_limit(system) else _COLORS.get(system, "#333333")


def _pyplot() -> Any:
    """Raises ModuleNotFoundError where matplotlib is not installed."""
    import_module("matplotlib").use("Agg")
    return import_module("matplotlib.pyplot")


def _finish(
    pyplot: Any, canvas: Any, axes: Any, path: Path, title: str, x: str, y: str, *, has_legend: bool = True
) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(which="major", alpha=0.25)
    axes.set_axisbelow(True)
    if has_legend:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save(canvas, path)
    pyplot.close(canvas)
