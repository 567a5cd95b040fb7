# Optional packages that a table needs. Law: if one is missing, the error says what to install.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from diskq.distribution import install_command

__all__ = ["needs", "needs_pyarrow"]


@contextmanager
def needs(package: str, what: str, extra: str) -> Iterator[None]:
    """Say what to install if an import in the block finds no `package`, or not the module of it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != package:
            raise
        sentence = f"{what} need {package}: `{install_command(extra)}`"
        raise ModuleNotFoundError(sentence, name=package) from None


def needs_pyarrow() -> AbstractContextManager[None]:
    """As `needs`, for what every table needs."""
    return needs("pyarrow", "tables", "arrow")
