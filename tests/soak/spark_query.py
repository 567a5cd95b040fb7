"""A streaming query of its own process, from one stream into another, until all of it is there.

    python tests/soak/spark_query.py SOURCE OUT CHECKPOINT ROWS

Says what its JVM's process is, then a line for each batch.
"""

from __future__ import annotations

import sys
from typing import Any

import diskq.spark


def main(source: str, out: str, checkpoint: str, rows: int) -> None:
    conf: dict[str, Any] = {"spark.log.level": "OFF", "spark.local.dir": checkpoint + ".local"}
    conf["spark.driver.extraJavaOptions"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    spark = diskq.spark.session("soak", "local[2]", conf)
    gateway: Any = spark.sparkContext._gateway
    print("jvm", gateway.proc.pid, flush=True)
    messages = (
        spark.readStream.format("diskq")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows)
        .load(source)
        .select("key", "value", "timestamp")
    )
    query = (
        messages.writeStream.format("diskq")
        .trigger(availableNow=True)
        .option("partitionCount", 2)
        .option("checkpointLocation", checkpoint)
        .start(out)
    )
    last = -1
    while not query.awaitTermination(0.05):  # type: ignore[arg-type]
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last:
            last = progress["batchId"]
            print("batch", last, flush=True)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    source, out, checkpoint, rows = sys.argv[1:]
    main(source, out, checkpoint, int(rows))
