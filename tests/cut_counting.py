# How many crashes a test run tries. Law: what counts is a disk of `diskq.testing` as a death has left it,
# when a store on it is opened for writing; its copies count, as each is damaged in its own way. With
# DISKQ_COUNT_CUTS=1 the end of the run says the number, over all processes.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from diskq.testing import CrashFS

__all__ = ["CutCount"]

_LEFT = "_was_left_by_a_crash"


class CutCount:
    """A plugin that counts them."""

    def __init__(self) -> None:
        self.opened = 0
        wrapped = {
            "kill": _leaving(CrashFS.kill, always=True),
            "crash": _leaving(CrashFS.crash, always=True),
            "copy": _leaving(CrashFS.copy, always=False),
            "try_lock": self._counting(CrashFS.try_lock),
        }
        for name, method in wrapped.items():
            setattr(CrashFS, name, method)

    def _counting(self, try_lock: Callable[[CrashFS, int], bool]) -> Callable[[CrashFS, int], bool]:
        @functools.wraps(try_lock)
        def counted(disk: CrashFS, handle: int) -> bool:
            if disk.__dict__.pop(_LEFT, False):
                self.opened += 1
            return try_lock(disk, handle)

        return counted

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["opened_after_crashes"] = self.opened

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.opened += getattr(node, "workeroutput", {}).get("opened_after_crashes", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"Opened after a crash: {self.opened:,} disks.")


def _leaving(act: Callable[..., CrashFS], *, always: bool) -> Callable[..., CrashFS]:
    @functools.wraps(act)
    def leave(disk: CrashFS, *args: Any, **how: Any) -> CrashFS:
        after = act(disk, *args, **how)
        if always or _LEFT in disk.__dict__:
            setattr(after, _LEFT, True)
        return after

    return leave
