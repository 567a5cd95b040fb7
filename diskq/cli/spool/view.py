# A spool, as the command line reads it. Law: an error for what is no spool, with advice.

from __future__ import annotations

from diskq.cli.core.directories import check_directory
from diskq.cli.core.parsing import CommandError
from diskq.tools.view.spool import SpoolView, is_spool, slots_of
from diskq.tools.view.spool import look_at_spool as look

__all__ = ["SpoolView", "check_spool", "look_at_spool", "slots_of"]


def check_spool(path: str, advice: str = "") -> None:
    """Raises CommandError unless there is a spool in the directory `path`."""
    check_directory(path, advice)
    if not is_spool(path):
        raise CommandError(f"{path}: there is no spool here{advice}")


def look_at_spool(path: str) -> SpoolView:
    """Return the state of the spool, up to a second old. Raises CommandError if there is none, OSError."""
    check_spool(path)
    return look(path)
