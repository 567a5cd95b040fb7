"""What a stream hands out. Compiled, as one is made for each record that is read."""

from __future__ import annotations

from diskq._native.message import Message, Position

__all__ = ["Message", "Position"]
