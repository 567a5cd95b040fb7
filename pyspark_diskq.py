# Spark's door to diskq. Law: importing this raises nothing, whatever is missing.
#
# Spark imports every top-level module named `pyspark_*` and takes its `DefaultSource`. One that cannot be
# imported hides them all, other people's too; one without a `DefaultSource` is passed over.

import contextlib
import importlib

with contextlib.suppress(Exception):  # who imports diskq.spark.source himself is told
    DefaultSource = importlib.import_module("diskq.spark.source").DiskqDataSource
