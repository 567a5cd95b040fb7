# The directories of a hub: one for each journal of each client. Law: each name becomes one directory directly
# below the root, and no two names become the same one.
#
#     <root>/<client id>.<journal>/      a journal, in sej's files
#
# A client id has no dot, so the first dot ends it: "a.b" + "c" and "a" + "b.c" cannot both exist. A journal's
# name may have dots, as shards have ("blue.3.000").

from __future__ import annotations

import re

__all__ = ["checked_client", "checked_journal", "directory_name", "parted"]

_CLIENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:#-]{0,63}", re.ASCII)
_JOURNAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:#-]{0,63}", re.ASCII)


def checked_client(name: str | bytes) -> str:
    """Return `name` as text. Raises ValueError if it is not a client id."""
    return _checked(name, _CLIENT, "a client id", "_ : # -")


def checked_journal(name: str | bytes) -> str:
    """Return `name` as text. Raises ValueError if it is not a journal's name."""
    return _checked(name, _JOURNAL, "a journal's name", "_ . : # -")


def _checked(name: str | bytes, pattern: re.Pattern[str], what: str, others: str) -> str:
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    if not pattern.fullmatch(text):
        raise ValueError(
            f"{what} is 1 to 64 letters, digits and {others}, a letter, a digit or _ first; not {text[:80]!a}"
        )
    return text


def directory_name(client: str, journal: str) -> str:
    """Return the journal's directory below the root. Both names were checked."""
    return f"{client}.{journal}"


def parted(name: str) -> tuple[str, str] | None:
    """Return the client and the journal of a directory; None: it is not a journal's."""
    client, dot, journal = name.partition(".")
    if not dot or not _CLIENT.fullmatch(client) or not _JOURNAL.fullmatch(journal):
        return None
    return client, journal
