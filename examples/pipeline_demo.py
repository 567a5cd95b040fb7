"""The year of departures as a table and on Spark: kept as Parquet, counted by the hour, drawn, and verified.

It uses the stream of the demo before it, in which each row has its airport as its key and its departure time
as its timestamp.

    table      the stream becomes Parquet files; the first update is stopped midway, as by Ctrl-C, a second
               one resumes it, a third finds nothing to do; Spark reads the files, and what is not in them yet
    aggregate  departures and their delay, by hour and airport; the time is that of the departure, and the
               rows are in the order of the schedule: a window is closed when a flight is a day later
    chart      the same by hour of the day, as a PNG
    verify     every segment: checksums, records, indices, offsets
    check      table and stream have each row once; and every hour's count equals the count of the rows
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import time
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stream_demo
import trio
from flights import DemoError, cache
from screen import Plain, rate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WATERMARK = timedelta(days=1)
DELAY = "try_cast(split(cast(value AS string), ',')[{column}] AS double)"

# The chart's day begins here: only very late flights leave before.
FIRST_HOUR = 5

# An airport has the same colour everywhere.
COLOURS = {"EWR": "#2a78d6", "JFK": "#eb6834", "LGA": "#1baf7a"}


def missing() -> str | None:
    """Return a sentence about a missing requirement; None if there is none."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is missing: .venv/bin/pip install -e '.[demo]'"
    from diskq.spark.java import JavaNotFoundError, find_java

    try:
        find_java()
    except JavaNotFoundError as failure:
        return str(failure)
    return None


@contextlib.contextmanager
def spark_session(directory: Path) -> Generator[SparkSession]:
    """Give a session on this machine, without its own output."""
    import diskq.spark
    from diskq.cli.pipeline.runs import unheard

    settings: dict[str, bool | int | float | str] = {
        "spark.local.dir": str(directory),
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "OFF",
    }
    with unheard():
        session = diskq.spark.session("diskq demo", "local[*]", settings)
    try:
        yield session
    finally:
        session.stop()


# --- the expected result --------------------------------------------------------------------------


def counted(source: Path, most: int | None) -> Counter[tuple[datetime, str]]:
    """Count the departures of each hour and airport, row by row."""
    hours: Counter[tuple[datetime, str]] = Counter()
    for airport, _, left in stream_demo.rows_of(source, most):
        hours[EPOCH + (left - EPOCH) // HOUR * HOUR, airport] += 1
    return hours


def interrupt(file: object) -> None:
    """Do as Ctrl-C does, when the first file of the table is there."""
    raise KeyboardInterrupt


def header(source: Path) -> list[str]:
    with source.open(newline="") as file:
        return next(csv.reader(file), list[str]())


# --- the chart ------------------------------------------------------------------------------------


def chart(hours: list[Any], path: Path) -> str:
    """Draw departures and their delay by hour of the day. Returns a line for the report."""
    if importlib.util.find_spec("matplotlib") is None:
        return "not drawn: matplotlib is missing: .venv/bin/pip install -e '.[demo]'"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    departures, delays = figure.subplots(2, 1, sharex=True)
    days = len({row["window_start"].date() for row in hours})
    for airport in sorted({row["by"] for row in hours}):
        of_day: dict[int, list[Any]] = {}
        for row in hours:
            if row["by"] == airport:
                left = row["window_start"].replace(tzinfo=UTC).astimezone(stream_demo.NEW_YORK)
                of_day.setdefault(left.hour, []).append(row)
        at = [hour for hour in sorted(of_day) if hour >= FIRST_HOUR]
        counts = [sum(row["count"] for row in of_day[hour]) / days for hour in at]
        flown = {hour: sum(row["flown"] for row in of_day[hour]) for hour in at}
        late = [sum(row["late"] or 0.0 for row in of_day[hour]) / max(1, flown[hour]) for hour in at]
        style = {"label": airport, "color": COLOURS.get(airport), "linewidth": 2}
        departures.plot(at, counts, **style)
        delays.plot(at, late, **style)
    departures.set_title("Departures from New York, 2013", loc="left", fontweight="bold")
    departures.set_ylabel("flights an hour")
    delays.set_ylabel("mean delay, minutes")
    delays.set_xlabel("hour of the day in which they left, New York time")
    delays.set_xticks(range(6, 24, 3), [f"{hour}:00" for hour in range(6, 24, 3)])
    departures.legend(frameon=False, ncols=3)
    for axes in (departures, delays):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=130)
    return str(path)


# --- all of it ------------------------------------------------------------------------------------


def demo(source: Path, most: int | None, directory: Path, out: Plain) -> bool:
    out.title("\nThe same stream as a table and on Spark: kept, counted, drawn")
    if "dep_delay" not in header(source):
        raise DemoError(f"{source} has no column dep_delay: try --only stream")
    if (what := missing()) is not None:
        out.section("left out", what)
        return True
    stream = directory.parent / "stream" / "departures"
    if not stream.exists():  # with --only pipeline
        stream = directory / "departures"
        trio.run(stream_demo.write, source, most, stream)
    began = time.perf_counter()
    with spark_session(directory / "spark") as spark:
        out.section(
            "spark",
            f"{spark.version}, on {spark.sparkContext.defaultParallelism} cores, "
            f"started in {time.perf_counter() - began:.1f} s",
        )
        return pipeline(spark, source, most, stream, directory, out)


def pipeline(
    spark: SparkSession, source: Path, most: int | None, stream: Path, directory: Path, out: Plain
) -> bool:
    import diskq.spark
    from diskq.spark import pipelines
    from diskq.tools.stores import stores_at
    from diskq.tools.verify.verification import verify

    wanted = counted(source, most)
    total = wanted.total()
    lake, hourly = str(directory / "lake"), str(directory / "hourly")

    table = diskq.open_table(stream, lake)
    began = time.perf_counter()
    with contextlib.suppress(KeyboardInterrupt):
        table.update(each=interrupt)
    first = table.statistics().offsets
    second = table.update().messages
    seconds = time.perf_counter() - began
    third = table.update().messages
    rows = diskq.spark.read(spark, stream, table=table)
    there, different = rows.count(), rows.select("partition", "offset").distinct().count()
    out.section(
        "table",
        f"{first:,} rows to Parquet, then stopped; the second update: {second:,} rows, "
        f"{rate(first + second, seconds)}; the third: {third:,} rows",
        f"in table and stream are {there:,} rows, {different:,} different",
    )

    delay = DELAY.format(column=header(source).index("dep_delay"))
    how: dict[str, Any] = {
        "window": HOUR.total_seconds(),
        "watermark": WATERMARK.total_seconds(),
        "measures": {"flown": f"count({delay})", "late": f"sum({delay})"},
    }
    done = pipelines.aggregate(spark, str(stream), hourly, **how)
    again = pipelines.aggregate(spark, str(stream), hourly, **how)
    windows = spark.read.parquet(hourly).collect()
    out.section(
        "hourly",
        f"{done.messages:,} rows make {done.windows:,} hours of an airport, "
        f"{rate(done.messages, done.seconds)}; {done.open_windows} are not closed",
        f"the second run finds {again.messages:,} rows, and closes {again.windows:,} hours",
    )

    kept = cache() if directory.is_relative_to(cache()) else directory
    out.section("chart", chart(windows, kept / "departures.png"))

    (store,) = stores_at(str(stream))
    verified = verify(store)
    out.section(
        "verify",
        f"{verified.messages:,} rows, {100 * verified.checksummed // max(1, verified.size)}% of them under "
        f"checksums: {verified.verdict}",
    )

    found = {(row["window_start"].replace(tzinfo=UTC), row["by"]): row["count"] for row in windows}
    is_counted = (
        len(found) == len(windows) == done.windows
        and found.items() <= wanted.items()
        and len(found) + done.open_windows == len(wanted)
    )
    is_good = (
        is_counted
        and verified.verdict == "clean"
        and there == different == total
        and (third, again.messages, again.windows, done.late) == (0, 0, 0, 0)
    )
    out.section(
        "check", f"{len(found):,} hours counted row by row: {'the same' if is_counted else 'OTHERWISE'}"
    )
    if is_good:
        out.verdict("Every row is there once, every hour is right, and nothing was done twice.", is_good=True)
    else:
        out.verdict("SOMETHING IS WRONG. This is a bug in diskq: please report it.", is_good=False)
    return is_good
