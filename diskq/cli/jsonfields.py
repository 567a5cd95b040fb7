# The fields of a line of JSON that a person, or another program, may have written.

from __future__ import annotations

import base64
import binascii
from typing import Any

__all__ = ["bytes_of", "text_of"]


def bytes_of(told: dict[str, Any], name: str) -> bytes | None:
    """What its base64 says; None where there is none. Raises ValueError."""
    text = text_of(told, name)
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as failure:
        raise ValueError(f"its {name} is no base64 ({failure})") from None


def text_of(told: dict[str, Any], name: str) -> str | None:
    """None where there is none. Raises ValueError."""
    text = told.get(name)
    if not isinstance(text, str | None):
        raise ValueError(f"its {name} is no text")
    return text
