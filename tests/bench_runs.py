# What a report says of its run, for the tests of reports: a run of nothing, on no machine. A test takes what
# it is about along: ABOUT | {"rounds": 2}.

from __future__ import annotations

from typing import Any

__all__ = ["ABOUT"]

ABOUT: dict[str, Any] = {
    "benchmark": "queue",
    "scale": "full",
    "rounds": 1,
    "began": "today",
    "commit": "0123456789ab",
    "machine": {"cpu": "one", "cores": 1, "system": "some", "kernel": "0", "file_system": "none"},
    "load_before": 0,
    "load_after": 0,
    "versions": {"python": "3"},
}
