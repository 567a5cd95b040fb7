# The errors that all channels share, by names for programs that do not import Trio. Law: they are Trio's own
# classes, on every event loop; what catches the one catches the other.

from __future__ import annotations

from trio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfChannel, WouldBlock

__all__ = ["BrokenResourceError", "BusyResourceError", "ClosedResourceError", "EndOfChannel", "WouldBlock"]
