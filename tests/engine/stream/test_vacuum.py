# Retention through the stream that is written: by its own settings.

from __future__ import annotations

import diskq
from diskq.engine.stream.time_summary import read_sealed, sealed_rows
from diskq.testing import CrashFS


def test_a_stream_removes_what_its_settings_do_not_keep():
    fs = CrashFS()
    options = diskq.StreamOptions(partition_count=1, segment_size=1000, retention_max_bytes=2500)
    with diskq.Stream("/stream", options=options, fs=fs) as stream:
        stream.append_many([b"x" * 79] * 100, key="k")
        report = stream.vacuum()
        assert (report.segments, report.partitions[0].first_offset) == (8, 80)
        assert stream.vacuum().segments == 0
        assert stream.append(b"next", key="k").offset == 100


def test_a_message_stamped_in_the_future_is_in_the_report_and_logged_once(caplog):
    fs = CrashFS()
    options = diskq.StreamOptions(partition_count=1, segment_size=1000, retention_max_age=60.0)
    with diskq.Stream("/stream", options=options, fs=fs) as stream:
        stream.append(b"wrong clock", key="k", timestamp=2 * 10**18)
        stream.append_many([b"x" * 79] * 100, key="k")
        for _ in range(2):
            (future,) = stream.vacuum().from_future
            assert (future.base, future.removed) == (0, False)
        fs.clock += 61
        report = stream.vacuum()
        assert (report.segments, report.from_future[0].removed) == (10, True)
    logged = [record for record in caplog.records if record.diskq_event == "future_timestamp"]
    assert [record.diskq_offset for record in logged] == [0]
    assert "in the future" in logged[0].getMessage()


def test_what_was_noted_of_them_is_forgotten():
    fs = CrashFS()
    options = diskq.StreamOptions(partition_count=1, segment_size=1000, retention_max_bytes=2500)
    with diskq.Stream("/stream", options=options, fs=fs) as stream:
        stream.append_many([b"x" * 79] * 100, key="k")
        stream.vacuum()
        noted = sealed_rows(read_sealed(fs, stream.files.partition(0)))
        assert [row.base for row in noted.values() if row.size] == [80, 90]
