# Names in a directory of an object store, or of another file system that Spark reads. Law: they are listed
# with Spark's own settings and credentials, so a job that may read the files may list them.

from __future__ import annotations

import errno
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["HadoopNames"]


class HadoopNames:
    """What a list of a table's files needs of a file system: the names in a directory.

    Not with a session of Spark Connect, which has no JVM here.
    """

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark
        self._jvm: Any = session._jvm
        self._conf: Any = session._jsparkSession.sessionState().newHadoopConf()

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the directory `path`, a URI. Raises FileNotFoundError, and as Hadoop."""
        directory = self._jvm.org.apache.hadoop.fs.Path(path)
        files = directory.getFileSystem(self._conf)
        if not files.exists(directory):
            raise FileNotFoundError(errno.ENOENT, "it does not exist", path)
        return [status.getPath().getName() for status in files.listStatus(directory)]
