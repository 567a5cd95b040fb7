# One report of all benchmarks. Law: it is made from the JSON files in the directory alone, each with its date
# and commit; nothing is measured for it, and a figure that is missing is left out.

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from benchmarks import gaps, overview, pictures
from benchmarks.curves import Curves, curves
from benchmarks.floors import reason_of
from benchmarks.harness import Result, Spread
from benchmarks.report import Report, against, floor_of, line_of, range_of, short, value_of, verdict_of

__all__ = ["NAME", "read", "read_texts", "render", "write"]

NAME = "report.md"
_LONGEST = 12
_QUANTILES = {"p50": "p50_us", "p90": "p90_us", "p99": "p99_us", "most": "max_us"}


@dataclass(frozen=True, slots=True)
class Question:
    """What a table of the report answers, of the sections of the sweep that begin with `prefix`."""

    title: str
    prefix: str
    figure: str
    says: str
    x: str
    y: str
    picture: str
    primary: str = ""
    """The path of diskq that the peers are compared with; if empty, there are no ratios."""


QUESTIONS = (
    Question(
        "How fast to the page cache, by the size of a message",
        "To the page cache",
        "rate",
        "One call per message, or `send_many` of 100 (of 4 MiB at most). Rate, and processor time a message. "
        "Where messages are large, diskq waits for the disk: no more than 64 MiB are left unsynced "
        "(`max_unsynced`), a bound that the others do not have. *As bounded* go-diskqueue syncs as often as "
        "makes that much.",
        "bytes of a message",
        "messages a second",
        "by-size.png",
        primary="queue send",
    ),
    Question(
        "How fast durable, by the number of producers",
        "Durable: producers",
        "rate",
        "100 bytes; a send returns after its sync. With N producers: diskq by N tasks, or by `send_many` of "
        "N; go-diskqueue by N goroutines. The others do not gather what several producers send: N messages "
        "in one transaction, batch or pipeline, which is the best that they can do. The limit is one "
        "writev(2) of them and one fdatasync of a growing file.",
        "producers",
        "messages a second",
        "durable.png",
        primary="queue",
    ),
    Question(
        "How fast to read, to scan, by columns",
        "Reading",
        "rate",
        "100 bytes, from files in the page cache. The limits are read(2) of the bodies' bytes by the MiB, "
        "and their memcpy.",
        "messages a second",
        "",
        "reading.png",
        primary="stream columns",
    ),
    Question(
        "What a message costs as the backlog grows",
        "Backlog",
        "rate",
        "16 bytes; one sent and one received, over and over, while the backlog stays. Rate is of such pairs.",
        "messages that stay",
        "pairs a second",
        "backlog.png",
        primary="queue",
    ),
    Question(
        "Memory, by the backlog",
        "Backlog",
        "rss_mib",
        "What the process grew by when it opened the queue; of a server, all that it holds.",
        "messages that stay",
        "MiB",
        "memory.png",
    ),
    Question(
        "How long it takes to open, by the backlog",
        "Backlog",
        "open_ms",
        "Closed in order, in the page cache; of a server, its start and what it loads.",
        "messages that stay",
        "ms",
        "open.png",
    ),
)


def write(directory: Path) -> list[Path]:
    """`report.md` and its pictures, beside the results that they are made of. What was written."""
    reports = read(directory)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        drawn = draw(reports, directory)
    except ModuleNotFoundError:
        drawn = []
    path = directory / NAME
    path.write_text(render(reports, {each.name for each in drawn}))
    return [path, *drawn]


def read(directory: Path) -> list[Report]:
    """What was measured; other results may lie beside it, of what is lost (tests/torture)."""
    return read_texts(path.read_text() for path in sorted(directory.glob("*.json")))


def read_texts(texts: Iterable[str]) -> list[Report]:
    """The reports among these texts of JSON."""
    return [Report.read(text) for text in texts if "rows" in json.loads(text)]


# --- the text ----------------------------------------------------------------------------------------------


def _swept(reports: Sequence[Report]) -> list[Result]:
    return [each for report in reports if report.about["benchmark"] == "sweep" for each in report.results]


def render(reports: Sequence[Report], drawn: set[str] | None = None) -> str:
    """The report in Markdown, with those pictures that were drawn."""
    quick = [report.about["benchmark"] for report in reports if report.about["scale"] != "full"]
    lines = ["# diskq, measured", ""]
    if not reports:
        return "\n".join([*lines, "No results lie here: `make bench` makes them.", ""])
    if quick:
        lines += [
            f"**Quick, and no evidence:** {', '.join(quick)}: a fraction of the work, in one round.",
            "",
        ]
    lines += [
        "Medians; ratios are of one round, with their least..most. Above 1 x diskq is the better one. What "
        "each row means and what is not fair is in [benchmarks/README.md](../README.md). Made of the JSON "
        "files beside it by `python -m benchmarks report`.",
        "",
        *overview.markdown(overview.glance(reports), drawn or set()),
        *_runs(reports),
        *_floors(reports),
    ]
    swept = _swept(reports)
    lines += gaps.markdown(swept)
    for question in QUESTIONS:
        found = curves(swept, question.prefix)
        if found.of:
            lines += _answer(question, found, drawn or set())
    lines += _latencies(reports, drawn or set())
    return "\n".join([*lines, *_all_rows(reports), *_machines(reports)])


def _runs(reports: Sequence[Report]) -> Iterator[str]:
    yield from (
        "## What ran",
        "",
        line_of(("benchmark", "scale", "rounds", "began", "took", "commit", "load", "table")),
    )
    yield "|---|---|---:|---|---:|---|---|---|"
    for report in reports:
        about = report.about
        took = _took(about["began"], about["ended"]) if "ended" in about else ""
        load = f"{about['load_before']} .. {about['load_after']}"
        name = about["benchmark"]
        cells = (name, about["scale"], str(about["rounds"]), about["began"], took, about["commit"], load)
        yield line_of((*cells, f"[{name}.md]({name}.md)"))
    yield ""
    took_of = {
        f"{name} ({report.about['benchmark']})": seconds
        for report in reports
        for name, seconds in report.about.get("took", {}).items()
    }
    if took_of:
        longest = sorted(took_of, key=took_of.__getitem__, reverse=True)[:_LONGEST]
        listed = ", ".join(f"{name} {_minutes(took_of[name])}" for name in longest)
        yield from (f"What took longest, in all rounds, with what is not measured: {listed}.", "")


def _took(began: str, ended: str) -> str:
    return _minutes((datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds())


def _minutes(seconds: float) -> str:
    """In minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def _floors(reports: Sequence[Report]) -> Iterator[str]:
    judged = [
        (report, result) for report in reports for result in report.results if result.is_reached is not None
    ]
    missed = [(report, result) for report, result in judged if not result.is_reached]
    yield from ("## The floors", "", f"{len(judged) - len(missed)} of {len(judged)} floors are reached.", "")
    yield line_of(("", "section", "row", "against", "measured", "least..most", "floor", ""))
    yield "|---|---|---|---|---:|---:|---:|---|"
    for report, result in judged:
        row = result.row
        if result.missing:
            measured, spread = result.missing, ""
        else:
            if row.at_least is not None:
                assert result.ratio is not None
                measured, spread = f"{short(result.ratio.median)} x", range_of(result.ratio)
            else:
                measured = value_of(row.figure, result.ours)
                spread = range_of(result.ours[row.figure], row.figure)
        cells = (report.about["benchmark"], result.section, row.name, against(row), measured, spread)
        yield line_of((*cells, floor_of(result), verdict_of(result)))
    yield ""
    if missed:
        yield from ("### Why they are missed", "")
        for report, result in missed:
            yield f"* {report.about['benchmark']}, {_told(result)}: {_reason(report, result)}"
        yield ""


def _told(result: Result) -> str:
    peer = against(result.row)
    return f"**{result.row.name}**" + (f" (against {peer})" if peer else "")


def _reason(report: Report, result: Result) -> str:
    if result.missing:
        return f"not measured: {result.missing}."
    if reason := reason_of(result.section, result.row):
        return reason
    if report.about["scale"] != "full":
        return "a quick run, which shows nothing."
    return "no reason is stated (benchmarks/floors.py)."


def _answer(question: Question, found: Curves, drawn: set[str]) -> Iterator[str]:
    yield from (f"## {question.title}", "", question.says, "")
    if question.picture in drawn:
        yield from (f"![{question.title}]({question.picture})", "")
    if found.missing:
        yield from (f"Not measured: {'; '.join(found.missing)}.", "")
    yield from _table(found, lambda system, point: _cell(question.figure, found.of[system].get(point)))
    if not question.primary:
        return
    yield from (f"Times as fast as each, `{question.primary}`:", "")
    yield from _table(
        found, lambda system, point: _times(found.ratio(question.primary, system, point)), found.theirs
    )
    for limit in found.limits:
        yield from (f"Share of `{limit}` that is reached:", "")
        yield from _table(found, partial(_share, found, limit), found.ours)


def _table(
    found: Curves, cell: Callable[[str, str], str], systems: Sequence[str] | None = None
) -> Iterator[str]:
    yield line_of(("", *found.points))
    yield "|---|" + "---:|" * len(found.points)
    for system in list(found.of) if systems is None else systems:
        cells = [cell(system, point) for point in found.points]
        if any(cells):
            yield line_of((system, *cells))
    yield ""


def _cell(figure: str, figures: dict[str, Spread] | None) -> str:
    if not figures or figure not in figures:
        return ""
    if figure != "rate":
        return f"{value_of(figure, figures)} ({range_of(figures[figure], figure)})"
    return f"{value_of(figure, figures)}, {short(figures['cpu_us'].median)} µs"


def _times(ratio: Spread | None) -> str:
    return f"{short(ratio.median)} x ({range_of(ratio)})" if ratio else ""


def _share(found: Curves, limit: str, system: str, point: str) -> str:
    ratio = found.ratio(system, limit, point)
    if ratio is None:
        return ""
    return f"{short(100 * ratio.median)} % ({short(100 * ratio.least)}..{short(100 * ratio.most)})"


# --- latency -----------------------------------------------------------------------------------------------


def _quantiles(reports: Sequence[Report]) -> dict[str, list[tuple[pictures.Named, pictures.Named | None]]]:
    """Return, by benchmark, the measured path of diskq and its peer; each peer once."""
    found: dict[str, list[tuple[pictures.Named, pictures.Named | None]]] = {}
    for report in reports:
        seen: set[str] = set()
        for result in report.results:
            row = result.row
            if row.figure != "p50_us" or "p99_us" not in result.ours:
                continue
            pair = [
                None if reading in seen or "p99_us" not in figures else (_spaced(reading), _told_by(figures))
                for reading, figures in ((row.ours, result.ours), (row.peer, result.peer))
            ]
            seen |= {row.ours, row.peer}
            pairs = found.setdefault(report.about["benchmark"], [])
            if pair[0] is not None:
                pairs.append((pair[0], pair[1]))
            elif pair[1] is not None:
                pairs.append((pair[1], None))
    return found


def _told_by(figures: dict[str, Spread]) -> dict[str, float]:
    return {tick: figures[name].median for tick, name in _QUANTILES.items() if name in figures}


def _spaced(reading: str) -> str:
    return reading.replace(": ", " ")


def _latencies(reports: Sequence[Report], drawn: set[str]) -> Iterator[str]:
    found = _quantiles(reports)
    if not found:
        return
    yield from ("## How long a message is under way", "")
    yield "From before `send` until another task, or process, holds it; a look-up: to its answer. In µs."
    yield ""
    if "latency.png" in drawn:
        yield from ("![latencies](latency.png)", "")
    yield line_of(("", "", *_QUANTILES))
    yield "|---|---|" + "---:|" * len(_QUANTILES)
    for benchmark, pairs in found.items():
        for name, told in (each for pair in pairs for each in pair if each is not None):
            cells = (short(told[tick]) if tick in told else "" for tick in _QUANTILES)
            yield line_of((benchmark, name, *cells))
    yield ""


# --- the rest ----------------------------------------------------------------------------------------------


def _all_rows(reports: Sequence[Report]) -> Iterator[str]:
    yield from ("## Every row", "", "With rates, processor time a message, ratios and spread: ", "")
    for report in reports:
        name = report.about["benchmark"]
        counted = sum(1 for result in report.results if not result.missing)
        yield f"* [{name}]({name}.md): {counted} of {len(report.results)} rows measured"
    yield ""


def _machines(reports: Sequence[Report]) -> Iterator[str]:
    yield from ("## On what", "")
    told: dict[str, list[str]] = {}
    for report in reports:
        machine, versions = report.about["machine"], report.about["versions"]
        text = (
            f"{machine['cpu']}, {machine['cores']} cores, {machine.get('memory_gib', '?')} GiB, "
            f"{machine['system']} {machine['kernel']}, {machine['file_system']}; "
            + ", ".join(f"{name} {number}" for name, number in versions.items())
        )
        told.setdefault(text, []).append(report.about["benchmark"])
    for text, names in told.items():
        yield f"* {', '.join(names)}: {text}"
    yield ""


# --- the pictures ------------------------------------------------------------------------------------------


def draw(reports: Sequence[Report], directory: Path) -> list[Path]:
    """Raises ModuleNotFoundError without matplotlib."""
    drawn = []
    if (seen := overview.glance(reports)).of:
        overview.draw(seen, directory / overview.PICTURE)
        drawn.append(directory / overview.PICTURE)
    swept = _swept(reports)
    for question in QUESTIONS:
        found, path = curves(swept, question.prefix), directory / question.picture
        if not any(question.figure in told for each in found.of.values() for told in each.values()):
            continue
        options = {"figure": question.figure, "title": question.title, "x": question.x}
        if len(found.points) == 1:
            pictures.bars(found, path, **options)
        else:
            pictures.lines(found, path, **options, y=question.y)
        drawn.append(path)
    if panels := _quantiles(reports):
        path = directory / "latency.png"
        pictures.latencies(panels, path, title="How long a message is under way")
        drawn.append(path)
    return drawn
