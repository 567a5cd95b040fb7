# How a message is appended: what its durability means to the compiled path.

from __future__ import annotations

from diskq._native.core.append_buffer import Mode
from diskq._native.core.gate import Admission
from diskq.options import Durability

__all__ = ["MODES", "Admission", "Mode", "admission"]

MODES: dict[Durability, Mode] = {"memory": Mode.HELD, "written": Mode.STAGED, "synced": Mode.WRITTEN}
"""By durability. "memory": a later flush writes the message; "synced": the caller syncs it afterwards."""


def admission(can_yield: bool) -> Admission:
    """Return what to ask of the gate for a caller that can, or cannot, let other tasks run."""
    return Admission.TIMED if can_yield else Admission.COUNTED
