"""What streams and journals hand out. Compiled, as one is made for each record that is read."""

from __future__ import annotations

from diskq._native.message import NULL_TIMESTAMP, JournalMessage, Message, Position

__all__ = ["NULL_TIMESTAMP", "JournalMessage", "Message", "Position"]
