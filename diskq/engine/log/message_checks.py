# The parts of a message, as callers pass them. Law: a wrong one is refused before anything is written, in the
# same words by every engine; what may change later is copied.

from __future__ import annotations

from diskq.errors import KeySizeError

__all__ = ["as_body", "as_key"]


def as_body(body: object, what: str = "a message") -> bytes:
    """Return `body` as bytes. Raises TypeError if it is not bytes, bytearray or memoryview."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        hint = "; encode it first" if isinstance(body, str) else ""
        if isinstance(body, int):
            hint = "; several messages are a list: is this one, which a call for one message takes?"
        raise TypeError(f"{what} is bytes, not {type(body).__name__}{hint}")
    return bytes(body)


def as_key(key: object, max_size: int) -> bytes | None:
    """Return `key` as bytes, a str in UTF-8. Raises TypeError, and KeySizeError above `max_size` bytes."""
    if key is None:
        return None
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"a message's key is a str or bytes, not {type(key).__name__}")
    key = key.encode() if isinstance(key, str) else bytes(key)
    if len(key) > max_size:
        raise KeySizeError(len(key), max_size)
    return key
