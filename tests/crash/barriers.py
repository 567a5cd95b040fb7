# Barriers that are weaker than ours. Law: whoever keeps messages in files with checksums beside them catches
# every one, whatever the format; a suite adds what only its format can catch.

from __future__ import annotations

from diskq.storage import append_file as appendfile
from diskq.storage import barrier
from tests.crash.mutations import Mutation

__all__ = ["APPENDFILE", "BARRIER", "WEAKER"]

APPENDFILE = appendfile.__name__
BARRIER = barrier.__name__

WEAKER = [
    # An fsync left out.
    Mutation(BARRIER, "fs.sync_files(self.files)", "pass"),
    Mutation(BARRIER, "fs.sync_files(self.files)", "fs.sync_files(self.files[:-1])"),
    Mutation(BARRIER, "fs.sync_files(self.files)", "fs.sync_files(self.files[1:])"),
    Mutation(BARRIER, "files=(*self.files, *active)", "files=active"),
    Mutation(BARRIER, "fs.sync_files((handle,))\n        finally", "pass\n        finally"),
    Mutation(APPENDFILE, "pending_syncs.sync_and_close(*handles)", "pending_syncs.closing += handles"),
    # A directory's fsync left out.
    Mutation(BARRIER, "for path in self.directories:", "for path in self.directories[1:]:"),
    Mutation(BARRIER, "for path in self.directories:", "for path in self.directories[:-1]:"),
    Mutation(APPENDFILE, "pending_syncs.directories[directory_of(path)] = None", "pass"),
    # An order turned round: names before data.
    Mutation(
        BARRIER,
        "        try:\n            if self.files:\n",
        "        self._replace(fs)\n        try:\n            if self.files:\n",
    ),
    # The rename left out.
    Mutation(BARRIER, "fs.rename(temporary, replacement.path)", "pass"),
]
