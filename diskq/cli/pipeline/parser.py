# The command line of `diskq pipeline`: verbs, options, help. Law: nothing of Spark is imported before the
# arguments of a verb have been checked.

from __future__ import annotations

import argparse

from diskq.cli.core.parsing import CommandParser, Commands, add_command, add_noun
from diskq.cli.pipeline import runs as pipeline_runs
from diskq.distribution import DISTRIBUTION, install_command

__all__ = ["add_parser", "run"]

ABOUT = f"""
Whole jobs over streams, with Apache Spark: on all cores of this machine, or on a cluster (--master). Each may
be interrupted or killed at any moment; the same command goes on from there, and does nothing twice.

They need Spark and Java: `{install_command("spark")}`, or '{DISTRIBUTION}[spark-jre]', which includes a Java.
Without Spark, `diskq stream table` makes Parquet files of a stream, and `diskq verify` checks it.
"""

EXAMPLES = """
  diskq pipeline aggregate clicks --window 1h --json-field page
  diskq pipeline replay /lake/topic=clicks clicks-again
  diskq pipeline reshard clicks clicks-12 --partition-count 12
  diskq pipeline merge journals/* --into all --id "get_json_object(cast(value AS string), '$.id')"
  diskq pipeline dedupe-merge /srv/hub --into all
"""

ABOUT_AGGREGATE = """
Count messages, bytes and rates in windows of time, by key, by a field of values that are JSON, or by any SQL
expression; --measure adds aggregates of your own. The result goes to Parquet, to a table, or to stdout.

Without --watermark the whole stream is counted, and an earlier result replaced. With it, counting is
incremental: a window is written once, when a message is later than its end by the watermark. Messages that
come after that are dropped, and reported as `late`. --follow goes on with new messages.

In expressions: key, value (both binary), topic, partition, offset, timestamp.
"""

EXAMPLES_AGGREGATE = """
  diskq pipeline aggregate clicks --window 1h
  diskq pipeline aggregate clicks --window 1m --json-field user.country --json
  diskq pipeline aggregate clicks /data/per-minute --window 1m --watermark 10m --follow 30s
  diskq pipeline aggregate clicks --window 1h --measure "longest=max(octet_length(value))"
"""

ABOUT_REPLAY = """
Copy a table of Parquet files (`diskq stream table`), or another stream, to a stream: keys, values and times
stay, partitions keep their order, each message comes once. The new stream is made if it is not there, with
the same number of partitions; in a stream with another number, keys determine the partitions.

With --speed 1 messages come at their original pace, with 60 those of a minute in a second; none before its
time, and up to about --every after it. A message waits for all before it in its partition, also if times step
back.
"""

EXAMPLES_REPLAY = """
  diskq pipeline replay /lake/topic=clicks clicks-again
  diskq pipeline replay /lake/topic=clicks load-test --speed 60
  diskq pipeline replay clicks mirror --follow 1s
"""

ABOUT_RESHARD = """
Copy a stream to a new one with another number of partitions. Keys, values and times stay; messages of one key
are in one partition again, in order. --follow goes on with new messages, until you switch to the new stream.
"""

EXAMPLES_RESHARD = """
  diskq pipeline reshard clicks clicks-12 --partition-count 12
  diskq pipeline reshard clicks clicks-12 --partition-count 12 --follow 1s
"""

ABOUT_MERGE = """
Merge many streams, one of each client, into one without duplicates; the messages of a client stay in order. A
later run may name other streams, too.

With --id two messages are the same if they are of one client, and the SQL expression gives the same for
both; without it, if key, time and value are the same, also of different clients. The first one is kept.
"""

EXAMPLES_MERGE = """
  diskq pipeline merge journals/* --into all
  diskq pipeline merge journals/* --into all --id "get_json_object(cast(value AS string), '$.id')"
"""

ABOUT_DEDUPE_MERGE = """
Merge what clients have sent to a hub into one stream, without duplicates; the messages of a journal stay in
order. ROOT is the hub's directory, with a journal in each directory CLIENT.JOURNAL; new ones are merged the
next time, or with --follow as they appear.

With --id two messages are the same if they are of one client, and the SQL expression gives the same for
both; without it, if key, time, type and value are the same, also of different clients. The first one is kept.
A stream keeps no types, and all its messages have a key and a time: a message without one gets one.
"""

EXAMPLES_DEDUPE_MERGE = """
  diskq pipeline dedupe-merge /srv/hub --into all
  diskq pipeline dedupe-merge /srv/hub --into all --journal web --follow 5s
  diskq pipeline dedupe-merge /srv/hub --into all --id "get_json_object(cast(value AS string), '$.id')"
"""


def add_parser(nouns: Commands) -> None:
    verbs = add_noun(nouns, "pipeline", "whole jobs over streams, on Spark", ABOUT, EXAMPLES)

    def add(name: str, text: str, about: str, examples: str) -> CommandParser:
        return add_command(verbs, name, text, about, examples)

    aggregate = add("aggregate", "counts and rates in windows of time", ABOUT_AGGREGATE, EXAMPLES_AGGREGATE)
    aggregate.add_path("stream")
    aggregate.add_argument(
        "into", metavar="DIR", nargs="?", help="the directory of Parquet files (default: none)"
    )
    _add_aggregate(aggregate)
    _add_going_on(aggregate, pipeline_runs.MOST_IN_A_BATCH)
    _add_spark(aggregate, pipeline_runs.aggregate)

    replay = add("replay", "Parquet, or a stream, back into a stream", ABOUT_REPLAY, EXAMPLES_REPLAY)
    replay.add_argument(
        "source", metavar="SOURCE", help="a table's directory, one of other Parquet files, or a stream's"
    )
    replay.add_argument("into", metavar="PATH", help="the directory of the stream that is written to")
    replay.add_argument(
        "--speed",
        type=speed,
        default=0.0,
        metavar="N",
        help="1 is the original pace, N is N times that, 0 is as fast as it can (default: 0)",
    )
    replay.add_duration(
        "--every", default=1.0, help="with --speed: time between two writes of due messages (default: 1s)"
    )
    _add_copying(replay, "replay", pipeline_runs.replay, partitions="as the source")

    reshard = add("reshard", "another number of partitions", ABOUT_RESHARD, EXAMPLES_RESHARD)
    reshard.add_path("stream")
    reshard.add_argument("into", metavar="NEW", help="the new stream's directory")
    _add_copying(reshard, "reshard", pipeline_runs.reshard)

    merge = add("merge", "many streams into one, without duplicates", ABOUT_MERGE, EXAMPLES_MERGE)
    merge.add_argument("paths", metavar="PATH", nargs="+", help="the clients' streams")
    _add_into(merge)
    _add_id(merge, "key, time and value")
    _add_copying(merge, "merge", pipeline_runs.merge)

    dedupe = add(
        "dedupe-merge",
        "what a hub's clients sent, into a stream",
        ABOUT_DEDUPE_MERGE,
        EXAMPLES_DEDUPE_MERGE,
    )
    dedupe.add_argument("root", metavar="ROOT", help="the hub's directory")
    _add_into(dedupe)
    dedupe.add_argument(
        "--journal", metavar="NAME", help="of each client the journal of this name (default: all of them)"
    )
    _add_id(dedupe, "key, time, type and value")
    _add_copying(dedupe, "dedupe-merge", pipeline_runs.dedupe_merge)


def run(args: argparse.Namespace) -> None:
    pipeline_runs.run(args)


# --- options --------------------------------------------------------------------------------------


def _add_aggregate(parser: CommandParser) -> None:
    parser.add_duration(
        "--window", required=True, help="duration of a window (default: none, it must be given)"
    )
    parser.add_duration(
        "--slide", help="time between the begins of windows, which then overlap (default: --window)"
    )
    by = parser.add_mutually_exclusive_group()
    by.add_argument("--by", metavar="SQL", help="a row for each value of this (default: the key, as text)")
    by.add_argument(
        "--json-field",
        metavar="NAME",
        help="a row for each value of this field of JSON values (default: see --by)",
    )
    parser.add_argument(
        "--measure",
        type=measure,
        action="append",
        default=[],
        metavar="NAME=SQL",
        dest="measures",
        help="another column, an aggregate; may be given several times (default: none)",
    )
    parser.add_argument(
        "--table", metavar="NAME", help="put the rows into this table of Spark's catalog (default: see DIR)"
    )
    parser.add_duration(
        "--watermark",
        help="count incrementally: a window is closed when a message is later than its end by this much "
        "(default: count the whole stream)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="directory of open windows; needed with --watermark if there is no DIR (default: in DIR)",
    )


def _add_into(parser: CommandParser) -> None:
    parser.add_argument(
        "--into", required=True, metavar="NEW", help="the merged stream (default: none, it must be given)"
    )


def _add_id(parser: CommandParser, default: str) -> None:
    parser.add_argument(
        "--id",
        metavar="SQL",
        help=f"what identifies a message of a client (default: {default}, of any client)",
    )


def _add_copying(
    parser: CommandParser, name: str, verb: object, *, partitions: str = "3, or as it has"
) -> None:
    """Add the options of verbs that copy to a stream in rounds; `name` is the default of --job."""
    parser.add_count("--partition-count", help=f"of the stream that is made (default: {partitions})")
    parser.add_argument(
        "--job",
        default=name,
        metavar="NAME",
        help=f"name of the position that the target stream keeps; another name begins anew (default: {name})",
    )
    parser.add_duration(
        "--wait",
        default=30.0,
        help="how long to wait for the stream if another process has it open (default: 30s)",
    )
    _add_going_on(parser, pipeline_runs.MOST_IN_A_ROUND)
    _add_spark(parser, verb)


def _add_going_on(parser: CommandParser, most: int) -> None:
    parser.add_duration(
        "--follow",
        help="go on until interrupted, with a look each DURATION (default: stop when caught up)",
    )
    parser.add_count("--batch", default=most, help=f"messages that a kill repeats at most (default: {most})")


def _add_spark(parser: CommandParser, verb: object) -> None:
    parser.add_json("what was done, as JSON")
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark is: spark://host:7077, yarn, local[2] (default: local[*], this machine)",
    )
    parser.add_argument(
        "--conf",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one of Spark's settings; may be given several times (default: see docs/spark.md)",
    )
    parser.set_defaults(run=run, verb=verb)


# --- types ----------------------------------------------------------------------------------------


def speed(text: str) -> float:
    """Return the factor, 0 or more. An argparse type."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"how many times as fast: 1, 0.5, 60, or 0; not {text!r}")
    return found


def setting(text: str) -> tuple[str, str]:
    """Return the two parts of NAME=VALUE. An argparse type."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"a setting is written spark.executor.memory=4g, not {text!r}")
    return name, value


def measure(text: str) -> tuple[str, str]:
    """Return the two parts of NAME=SQL. An argparse type."""
    name, _, expression = text.partition("=")
    if not name.isidentifier() or not expression:
        raise argparse.ArgumentTypeError(f"a measure is written slowest=max(...), not {text!r}")
    return name, expression
