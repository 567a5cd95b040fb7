# What a conversion does while it is measured: all of it, the sync at the end with it.

from __future__ import annotations

from pathlib import Path

from benchmarks.stopwatch import Reading, Stopwatch, body_of
from benchmarks.works import NAME, fill
from diskq.tools.convert.conversion import convert
from diskq.tools.convert.field_mapping import ConvertOptions, Format
from diskq.tools.convert.sources import LinesFile, Source
from diskq.tools.stores import Store, stores_at


def convert_all(directory: str, *, source: Format, target: Format, count: int) -> Reading:
    """Messages of 100 bytes, which a queue has had, from one format into another."""
    queue = Path(directory, "queue")
    queue.mkdir()
    fill(str(queue), count)
    filled: list[Source] = [Store("queue", str(queue), NAME)]
    if source != "nsq":
        convert(filled, f"{directory}/source", source)
        path = f"{directory}/source"
        filled = [LinesFile(path)] if source == "jsonl" else [*stores_at(path)]
    watch = Stopwatch()
    done = convert(filled, f"{directory}/target", target, ConvertOptions(lossy=True))
    found = watch.stop(count)
    assert done.messages == count
    assert len(body_of(100)) * count == done.bytes
    return found
