# The verbs of `diskq pipeline`. Law: errors that can be known are reported before Spark is started, which
# takes seconds; errors of Spark are one sentence; its own log is shown only with --debug.

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from diskq.cli.core.parsing import CommandError
from diskq.cli.core.stdio import stdout, write_whole
from diskq.cli.core.terminal import note, show_table, shown, status
from diskq.cli.stream.view import StreamView
from diskq.distribution import install_command
from diskq.errors import DiskqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from diskq.spark.pipelines import Progress

__all__ = [
    "MOST_IN_A_BATCH",
    "MOST_IN_A_ROUND",
    "aggregate",
    "dedupe_merge",
    "merge",
    "replay",
    "reshard",
    "run",
    "unheard",
]

MOST_IN_A_BATCH = 5_000_000
MOST_IN_A_ROUND = 2_000_000

# What ends the sentence in the first line of an error of Spark: [CLASS] Sentence. SQLSTATE: 42703
_NOISE = " SQLSTATE:"


def run(args: argparse.Namespace) -> None:
    args.verb(args)


# --- the verbs ------------------------------------------------------------------------------------


def aggregate(args: argparse.Namespace) -> None:
    StreamView(args.path)
    is_shown = args.into is None and args.table is None
    # Rows at a terminal show the progress.
    is_seen = is_shown and stdout.is_terminal()
    with _spark(args, "aggregating", is_shown=not is_seen) as (spark, watch):
        from diskq.spark import pipelines

        by = pipelines.json_field(args.json_field) if args.json_field else args.by or pipelines.BY_KEY
        done = pipelines.aggregate(
            spark,
            args.path,
            args.into,
            window=args.window,
            slide=args.slide,
            by=by,
            measures=dict(args.measures),
            table=args.table,
            each=(lambda rows: _show_rows(rows, as_json=args.json)) if is_shown else None,
            watermark=args.watermark,
            follow=args.follow,
            max_messages=args.batch,
            checkpoint=args.checkpoint,
            watch=watch,
        )
    if is_shown:
        waiting = f", {done.open_windows} wait for the watermark" if args.watermark is not None else ""
        late = f", {done.late} came too late" if done.late else ""
        note(f"{done.messages} messages in {done.windows} rows{waiting}{late}")
    else:
        _report(args, done)


def replay(args: argparse.Namespace) -> None:
    if "://" not in args.source and not os.path.isdir(args.source):
        raise CommandError(f"{args.source}: there is no such directory")
    _copy(args, "replaying", "replay", args.source, speed=args.speed, every=args.every)


def reshard(args: argparse.Namespace) -> None:
    StreamView(args.path)
    _copy(args, "resharding", "reshard", args.path)


def merge(args: argparse.Namespace) -> None:
    for path in args.paths:
        if not os.path.isdir(os.path.join(path, "jnl")):  # probably a journal; the pipeline checks that
            StreamView(path)
    _copy(args, "merging", "merge", args.paths, id_of=args.id)


def dedupe_merge(args: argparse.Namespace) -> None:
    if not os.path.isdir(args.root):
        raise CommandError(f"{args.root}: there is no such directory")
    _copy(args, "merging", "dedupe_merge", args.root, journal=args.journal, id_of=args.id)


def _copy(args: argparse.Namespace, what: str, pipeline: str, source: object, **own: object) -> None:
    """Run a pipeline that copies to a stream in rounds; `own` are the arguments of this one."""
    with _spark(args, what) as (spark, watch):
        from diskq.spark import pipelines

        copied = getattr(pipelines, pipeline)(
            spark,
            source,
            args.into,
            partition_count=args.partition_count,
            follow=args.follow,
            max_messages=args.batch,
            job=args.job,
            wait=args.wait,
            watch=watch,
            **own,
        )
        _report(args, copied)


# --- the report -----------------------------------------------------------------------------------


def _report(args: argparse.Namespace, done: Any) -> None:
    facts = asdict(done)
    if args.json:
        stdout.print(json.dumps(facts))
        return
    stdout.print(" ".join(f"{name}={_shown(value)}" for name, value in facts.items()))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _show_rows(rows: list[Any], *, as_json: bool) -> None:
    """Print the rows of windows that were closed."""
    columns = list(rows[0].asDict())
    cells = [[_cell(value) for value in row] for row in rows]
    if as_json:
        for row in cells:
            stdout.print(json.dumps(dict(zip(columns, row, strict=True))))
    else:
        texts = [["-" if cell is None else _number(cell) for cell in row] for row in cells]
        show_table(columns, texts, numeric=columns[3:])
    stdout.flush()


def _cell(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat() + ("" if value.tzinfo else "Z")
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    return value if isinstance(value, int | float | str | None) else str(value)


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else shown(str(value))


def _how_far(progress: Progress) -> str:
    parts = [f"{progress.messages:,} messages"]
    if progress.rate:
        parts.append(f"{progress.rate:,.0f}/s")
    if progress.batches:
        parts.append("1 batch" if progress.batches == 1 else f"{progress.batches:,} batches")
    if progress.lag:
        parts.append(f"{progress.lag:,} to go")
    if progress.tasks:
        parts.append(f"{progress.tasks[0]} of {progress.tasks[1]} tasks")
    return ", ".join(parts)


# --- Spark ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _spark(
    args: argparse.Namespace, what: str, *, is_shown: bool = True
) -> Iterator[tuple[SparkSession, Any]]:
    """Give a session, and the callback for progress. Errors in the block become one sentence."""
    latest: list[Progress] = []
    with _sentences(args.debug), _reporting_progress(latest), contextlib.ExitStack() as stack:
        say = stack.enter_context(status("starting Spark") if is_shown else contextlib.nullcontext(_nothing))

        def watch(progress: Progress) -> None:
            latest[:] = [progress]
            say(f"{what}: {_how_far(progress)}")

        spark = stack.enter_context(_session(args))
        say(what)
        yield spark, watch


def _nothing(text: str) -> None:
    """Show nothing."""


@contextlib.contextmanager
def _reporting_progress(latest: list[Progress]) -> Iterator[None]:
    """Print the progress at an interrupt. Nothing of it is lost."""
    try:
        yield
    except KeyboardInterrupt:
        if latest:
            note(f"stopped after {_how_far(latest[0])}; the same command goes on from here")
        raise


@contextlib.contextmanager
def _sentences(is_debug: bool) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in ("pyspark", "pyarrow", "py4j"):
            raise
        raise CommandError(f"pipelines need {package}: {install_command('spark')}") from None
    except (DiskqError, OSError, CommandError):
        raise
    except Exception as failure:
        from pyspark.errors import PySparkException

        from diskq.spark.errors import classify

        fault = classify(failure)
        if fault is not None:
            raise CommandError(f"{fault.code}: {fault.sentence}") from failure
        if not isinstance(failure, PySparkException):
            raise
        line = next(iter(str(failure).strip().splitlines()), type(failure).__name__)
        advice = "" if is_debug else " (--debug shows all that Spark says)"
        raise CommandError(f"Spark: {line.partition(_NOISE)[0]}{advice}") from failure


@contextlib.contextmanager
def _session(args: argparse.Namespace) -> Iterator[SparkSession]:
    import diskq.spark

    conf = {"spark.ui.showConsoleProgress": "false"}
    if not args.debug:
        conf["spark.log.level"] = "OFF"
        _silence()
    conf |= dict(args.conf)
    is_ours = _active() is None
    with contextlib.nullcontext() if args.debug or not is_ours else unheard():
        spark = diskq.spark.session("diskq pipeline", args.master, conf if is_ours else dict(args.conf))
    try:
        yield spark
    finally:
        if is_ours:
            with contextlib.suppress(Exception):
                spark.stop()


def _silence() -> None:
    """Silence what PySpark logs of errors on stderr, which is in the errors, too."""
    from pyspark.logger import PySparkLogger

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _active() -> object:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Send stderr of processes that the block starts to a file, which is printed if the block fails.

    A JVM prints warnings on it before any setting of Spark can prevent it.
    """
    with tempfile.TemporaryFile() as unheard:
        kept = os.dup(2)
        os.dup2(unheard.fileno(), 2)
        try:
            yield
        except Exception:
            unheard.seek(0)
            write_whole(kept, unheard.read()[-4000:], "stderr")
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
