# From a moment to an offset. Law: what takes long is done in a thread.

from __future__ import annotations

import threading

import diskq
from diskq.testing import FaultFS
from tests.loops import each_loop
from tests.tools.power_cuts import PATH, log_of, lost


@each_loop
async def test_after_a_power_cut_the_redo_log_is_replayed_in_a_thread() -> None:
    cut = lost("stream", partition_count=1)
    fs = FaultFS(cut.disk)
    assert await diskq.offset_after(PATH, 0, 0, fs=fs) == 0
    replays = [call for call in fs.calls if call.path == log_of(cut.store) or call.verb == "pwrite"]
    here = threading.get_ident()
    assert {call.verb for call in replays if call.thread == here} <= {"size_of"}
    assert {"open", "pread", "pwrite"} <= {call.verb for call in replays if call.thread != here}
