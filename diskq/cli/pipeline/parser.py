# `diskq pipeline`: its verbs, their options, and what their help teaches. Law: nothing of Spark is loaded
# before a verb has been called, and its arguments are known to make sense.

from __future__ import annotations

import argparse

from diskq.cli.core.parsing import CommandParser, Commands, add_command, add_noun
from diskq.cli.pipeline import runs as pipelineruns

__all__ = ["add_parser", "run"]

ABOUT = """
Whole jobs over streams, with Apache Spark: on all cores of this machine, or on a cluster (--master). Each may
be interrupted or killed at any moment; the same command again goes on where it was, and does nothing twice.

They need Spark and Java: `pip install 'diskq[spark]'`, or 'diskq[spark-jre]', which brings a Java along.
"""

EXAMPLES = """
  diskq pipeline archive clicks /data/clicks
  diskq pipeline aggregate clicks --window 1h --json-field page
  diskq pipeline replay /data/clicks clicks-again
  diskq pipeline reshard clicks clicks-12 --partitions 12
  diskq pipeline merge journals/* --into all --id "get_json_object(cast(value AS string), '$.id')"
  diskq pipeline dedupe-merge /srv/hub --into all
  diskq pipeline audit clicks
"""

ABOUT_ARCHIVE = """
A stream into Parquet, in directories by date and hour (UTC, of the messages' times), each message once. It
stops when it has caught up; --follow goes on with what comes. It goes on from where the last run was:
that is noted in the directory, beside the files.

The columns are key, value, topic, partition, offset, timestamp, timestampType, timestampNanos, date, hour.
Read it with Spark: it knows which files count, others may see what a killed run has left.
"""

EXAMPLES_ARCHIVE = """
  diskq pipeline archive clicks /data/clicks
  diskq pipeline archive clicks /data/clicks --follow 1m
  diskq pipeline archive flights /data/flights --by date --gather
"""

ABOUT_AGGREGATE = """
Counts, bytes and rates of messages in windows of their times, by key, by a field of values that are JSON,
or by any SQL expression; --measure adds aggregates of your own. The result goes to Parquet, to a table, or
to stdout.

Without --watermark all of the stream is counted, as it is now, and an earlier result replaced. With it, it
is done step by step: a window is written, once, when a message is so much later than its end. What comes
later all the same is dropped, and told as `late`. --follow goes on with what comes.

In expressions: key, value (both binary), topic, partition, offset, timestamp.
"""

EXAMPLES_AGGREGATE = """
  diskq pipeline aggregate clicks --window 1h
  diskq pipeline aggregate clicks --window 1m --json-field user.country --json
  diskq pipeline aggregate clicks /data/per-minute --window 1m --watermark 10m --follow 30s
  diskq pipeline aggregate clicks --window 1h --measure "longest=max(octet_length(value))"
"""

ABOUT_REPLAY = """
Parquet as `archive` writes it, or another stream, back into a stream: keys, values and times as they were,
each partition in its order, each message once. The new stream is made if it is not there, with as many
partitions; in one that has another number, messages go where their keys belong.

With --speed 1 messages come at their original pace, with 60 a minute's in a second; none before its time,
and about --every after it. A message waits for all before it in its partition, also where times step back.
"""

EXAMPLES_REPLAY = """
  diskq pipeline replay /data/clicks clicks-again
  diskq pipeline replay /data/clicks load-test --speed 60
  diskq pipeline replay clicks mirror --follow 1s
"""

ABOUT_RESHARD = """
A stream into a new one with another number of partitions. Keys, values and times stay as they are; messages
of one key are in one partition again, in their order. --follow goes on with what comes, until you are ready
to change over.
"""

EXAMPLES_RESHARD = """
  diskq pipeline reshard clicks clicks-12 --partitions 12
  diskq pipeline reshard clicks clicks-12 --partitions 12 --follow 1s
"""

ABOUT_AUDIT = """
Look closely at every segment of a stream: checksums, records, both indices against the data, offsets
without a gap. It changes nothing, and may run while others write and read.

The exit code says it all: 0 where the stream is as it should be, 1 where something is wrong (what, says a
line for each such segment), 2 where it could not look.
"""

EXAMPLES_AUDIT = """
  diskq pipeline audit clicks
  diskq pipeline audit clicks --all
  diskq pipeline audit clicks --json | jq 'select(.problem)'
"""

ABOUT_MERGE = """
Many streams into one, one for each client, without duplicates; what a client sent stays in order. Streams
that are named the next time are merged, too.

With --id two messages are the same if they are of one client, and the SQL expression gives the same for
both; without, if key, time and value are the same, whichever client sent them. The first one is kept.
"""

EXAMPLES_MERGE = """
  diskq pipeline merge journals/* --into all
  diskq pipeline merge journals/* --into all --id "get_json_object(cast(value AS string), '$.id')"
"""

ABOUT_DEDUPE_MERGE = """
What clients have sent to a hub, into one stream, without what was sent twice; what is in a journal stays in
order. ROOT is the hub's directory, with a journal in each directory CLIENT.JOURNAL; those that are new are
merged, too, the next time, or with --follow as they come.

With --id two messages are the same if they are of one client, and the SQL expression gives the same for
both; without, if key, time, type and value are the same, whichever client sent them. The first one is kept.
A stream keeps no types, and all its messages have a key and a time: one without gets one as it is written.
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

    archive = add("archive", "a stream into Parquet", ABOUT_ARCHIVE, EXAMPLES_ARCHIVE)
    archive.add_path("stream")
    archive.add_argument("into", metavar="DIR", help="where the Parquet files are to be")
    archive.add_argument(
        "--by",
        choices=["hour", "date"],
        default="hour",
        help="a directory for each hour, or for each date: where there is little in an hour (default: hour)",
    )
    archive.add_flag(
        "--gather",
        help="one file for each directory of a batch, for which it shuffles (default: one of each task)",
    )
    _add_going_on(archive, pipelineruns.MOST_IN_A_BATCH)
    _add_spark(archive, pipelineruns.archive)

    aggregate = add("aggregate", "counts and rates in windows of time", ABOUT_AGGREGATE, EXAMPLES_AGGREGATE)
    aggregate.add_path("stream")
    aggregate.add_argument("into", metavar="DIR", nargs="?", help="where Parquet files are to be, if there")
    _add_aggregate(aggregate)
    _add_going_on(aggregate, pipelineruns.MOST_IN_A_BATCH)
    _add_spark(aggregate, pipelineruns.aggregate)

    replay = add("replay", "Parquet, or a stream, back into a stream", ABOUT_REPLAY, EXAMPLES_REPLAY)
    replay.add_argument("source", metavar="SOURCE", help="a directory of Parquet files, or a stream's")
    replay.add_argument("into", metavar="PATH", help="the directory of the stream that is written to")
    replay.add_argument(
        "--speed",
        type=speed,
        default=0.0,
        metavar="N",
        help="1 is the original pace, N is N times that, 0 is as fast as it can (default: 0)",
    )
    replay.add_duration(
        "--every", default=1.0, help="with --speed: write what has become due so often (default: 1s)"
    )
    _add_copying(replay, "replay", pipelineruns.replay, partitions="as the source")

    reshard = add("reshard", "another number of partitions", ABOUT_RESHARD, EXAMPLES_RESHARD)
    reshard.add_path("stream")
    reshard.add_argument("into", metavar="NEW", help="the new stream's directory")
    _add_copying(reshard, "reshard", pipelineruns.reshard)

    audit = add("audit", "is a stream as it should be?", ABOUT_AUDIT, EXAMPLES_AUDIT)
    audit.add_path("stream")
    audit.add_flag("--all", help="show segments that are as they should be, too (default: the others)")
    _add_spark(audit, pipelineruns.audit, "a line of JSON for each segment")

    merge = add("merge", "many streams into one, without duplicates", ABOUT_MERGE, EXAMPLES_MERGE)
    merge.add_argument("paths", metavar="PATH", nargs="+", help="the clients' streams")
    _add_into(merge)
    _add_id(merge, "key, time and value")
    _add_copying(merge, "merge", pipelineruns.merge)

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
    _add_copying(dedupe, "dedupe-merge", pipelineruns.dedupe_merge)


def run(args: argparse.Namespace) -> None:
    pipelineruns.run(args)


# --- options --------------------------------------------------------------------------------------


def _add_aggregate(parser: CommandParser) -> None:
    parser.add_duration(
        "--window", required=True, help="how long a window is (default: none, it must be given)"
    )
    parser.add_duration(
        "--slide", help="begin a window so often, so that they overlap (default: one behind the other)"
    )
    by = parser.add_mutually_exclusive_group()
    by.add_argument("--by", metavar="SQL", help="a row for each value of this (default: the key, as text)")
    by.add_argument(
        "--json-field",
        metavar="NAME",
        help="or of this field of JSON values (default: see --by)",
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
        help="go on step by step: a window is closed when a message is so much later than its end "
        "(default: count all of it)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where open windows are kept; needed with --watermark, where there is no DIR (default: in DIR)",
    )


def _add_into(parser: CommandParser) -> None:
    parser.add_argument(
        "--into", required=True, metavar="NEW", help="the merged stream (default: none, it must be given)"
    )


def _add_id(parser: CommandParser, default: str) -> None:
    parser.add_argument(
        "--id",
        metavar="SQL",
        help=f"what tells a client's messages apart (default: {default}, of whichever client)",
    )


def _add_copying(
    parser: CommandParser, name: str, verb: object, *, partitions: str = "3, or as it has"
) -> None:
    """What every verb takes that copies into a stream in rounds; `name` is the job, by default."""
    parser.add_count("--partitions", help=f"of the stream that is made (default: {partitions})")
    parser.add_argument(
        "--job",
        default=name,
        metavar="NAME",
        help="under this name the stream that is written to notes how far it is; another one begins anew "
        f"(default: {name})",
    )
    parser.add_duration(
        "--wait",
        default=30.0,
        help="how long to wait for the stream, where another process has it open (default: 30s)",
    )
    _add_going_on(parser, pipelineruns.MOST_IN_A_ROUND)
    _add_spark(parser, verb)


def _add_going_on(parser: CommandParser, most: int) -> None:
    parser.add_duration(
        "--follow",
        help="go on with what comes, looking so often, until interrupted (default: stop when caught up)",
    )
    parser.add_count(
        "--most", default=most, help=f"messages in one go: what a kill costs at most (default: {most})"
    )


def _add_spark(
    parser: CommandParser,
    verb: object,
    json: str = "what was done, as JSON",
) -> None:
    parser.add_json(json)
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
    """How many times as fast, 0 or more. An argparse type."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"how many times as fast: 1, 0.5, 60, or 0; not {text!r}")
    return found


def setting(text: str) -> tuple[str, str]:
    """NAME=VALUE. An argparse type."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"a setting is written spark.executor.memory=4g, not {text!r}")
    return name, value


def measure(text: str) -> tuple[str, str]:
    """NAME=SQL. An argparse type."""
    name, _, expression = text.partition("=")
    if not name.isidentifier() or not expression:
        raise argparse.ArgumentTypeError(f"a measure is written slowest=max(...), not {text!r}")
    return name, expression
