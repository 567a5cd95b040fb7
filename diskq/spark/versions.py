# Which Spark is needed. Law: where it is missing, or too old, an import says so in one sentence.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diskq.distribution import install_command

__all__ = ["imports_explained"]

_OLDEST = "4.2"


@contextmanager
def imports_explained() -> Iterator[None]:
    """Say what to install if imports in the block find no pyspark, no pyarrow, or a pyspark that is too old.

    Raises ModuleNotFoundError or ImportError.
    """
    try:
        yield
    except ImportError as error:
        if error.name in ("pyspark", "pyarrow"):
            sentence = f"diskq.spark needs {error.name}: `{install_command('spark')}`"
            raise ModuleNotFoundError(sentence, name=error.name) from None
        if error.name is None or not error.name.startswith("pyspark."):
            raise
        sentence = f"diskq.spark needs PySpark {_OLDEST} or newer, and {_installed()} is installed"
        raise ImportError(f"{sentence}: `{install_command('spark')}`", name="pyspark") from error


def _installed() -> str:
    from importlib.metadata import PackageNotFoundError, version  # brings `email`

    try:
        return version("pyspark")
    except PackageNotFoundError:
        return "an unknown version"
