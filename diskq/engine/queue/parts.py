# What an open queue consists of. Law: each part is made once, here; its two ends (head.py, tail.py)
# and its quota (quota.py) share them.

from __future__ import annotations

import functools

from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.append_buffer import NsqBuffer
from diskq._native.queue.codec import MAX_BODY, NsqFraming
from diskq._native.queue.memory_tier import MemoryTier
from diskq.engine.log.writer import LogWriter
from diskq.engine.queue.files import QueueFiles
from diskq.engine.queue.quota import QueueQuota
from diskq.engine.queue.sealed_files import SealedFiles
from diskq.options import QueueOptions
from diskq.storage.append_file import AppendFile
from diskq.storage.fs import FileSystem

__all__ = ["QueueParts"]


_framing = functools.cache(NsqFraming)  # it has no state: many queues may have one


class QueueParts:
    """The parts of one queue."""

    def __init__(self, fs: FileSystem, files: QueueFiles, options: QueueOptions, log: LogWriter) -> None:
        self.fs = fs
        self.files = files
        self.options = options
        self.log = log
        gate_in = self.gate_in = log.new_gate()
        self.gate_out = log.new_gate()
        framing = self.framing = _framing(options.min_message_size, options.max_message_size)
        self.any_size = _framing(0, MAX_BODY)
        """The framing of what diskq certainly wrote: the limits may have changed since."""
        self.append = AppendFile(fs, gate_in, lambda on_block: NsqBuffer(fs, framing, gate_in, on_block))
        self.buffer = self.append.buffer
        """Its `file_number` is that of the file that is written, or will be written next."""
        self.ahead = ReadAhead(fs, framing, self.gate_out, self.any_size)
        self.tier = MemoryTier(framing, gate_in, self.gate_out, self.ahead)
        self.tier.limit = options.memory_size
        self.has_tier = options.memory_size > 0
        self.sealed = SealedFiles(fs, files)
        self.quota = QueueQuota(fs, files, options, self.sealed, self.append, self.tier)
