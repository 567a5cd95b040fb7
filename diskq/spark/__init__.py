"""diskq in Spark: streams and queues as a data source named `diskq`, in bulk and exactly once.

`session()` is a SparkSession with settings for this work, and `read()` a DataFrame of all messages, with a
table or without. In a session of your own, `spark.read.format("diskq")`, `readStream`, `write` and
`writeStream` work without it; `register()` adds pushed-down filters. Needs the extra `diskqueue[spark]`, and
Java; `diskqueue[spark-jre]` brings one. Modules that need pyspark are imported on first use. More:
docs/spark.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from diskq.spark.versions import imports_explained

if TYPE_CHECKING:
    from diskq.spark.errors import DiskqSparkError as DiskqSparkError, Fault as Fault, classify as classify
    from diskq.spark.java import JavaNotFoundError as JavaNotFoundError, ensure_java as ensure_java
    from diskq.spark.lag import offsets_behind as offsets_behind
    from diskq.spark.reading import read as read
    from diskq.spark.sessions import session as session
    from diskq.spark.source import FORMAT as FORMAT, register as register

# The public names, by their modules. The imports above repeat it for type checkers, which run no code; a test
# compares the two. (No module has the name of a function here: importing it would hide the function.)
_HOMES = {
    "errors": ("DiskqSparkError", "Fault", "classify"),
    "java": ("JavaNotFoundError", "ensure_java"),
    "lag": ("offsets_behind",),
    "reading": ("read",),
    "sessions": ("session",),
    "source": ("FORMAT", "register"),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            with imports_explained():
                found = importlib.import_module(f"{__name__}.{module}")
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
