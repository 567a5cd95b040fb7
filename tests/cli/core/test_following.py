# Waiting for what another process does. Law: told by the kernel, and never deaf without it.

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from diskq.cli.core.following import UNASKED, until
from diskq.storage.fs import OsFileSystem

is_told = OsFileSystem().open_watch() is not None


@pytest.fixture
def path(tmp_path):
    (tmp_path / "1").write_bytes(b"")
    return tmp_path


async def waits_for(path, act):
    """Do `act` while a task waits for it, with a stopped clock. Returns the number of looks."""
    looks = []

    def look():
        looks.append(1)
        return sum(each.stat().st_size for each in path.iterdir()) > 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(until, look, lambda fs: ([str(path)], map(str, path.iterdir())))
        await wait_all_tasks_blocked()
        act()
    return len(looks)


@pytest.mark.skipif(not is_told, reason="the kernel sends no notification")
@pytest.mark.timeout(30)
class TestWithoutTime:
    async def test_bytes_in_a_file_are_reported(self, path, mock_clock):
        assert await waits_for(path, lambda: (path / "1").write_bytes(b"x")) > 1

    async def test_a_file_that_comes_is_reported(self, path, mock_clock):
        assert await waits_for(path, lambda: (path / "2").write_bytes(b"x")) > 1

    async def test_a_file_that_comes_empty_is_watched(self, path, mock_clock):
        async def fills():
            (path / "2").touch()
            await wait_all_tasks_blocked()
            (path / "2").write_bytes(b"x")

        async with trio.open_nursery() as nursery:
            assert await waits_for(path, lambda: nursery.start_soon(fills)) > 1

    async def test_no_look_while_nothing_changes(self, path, mock_clock):
        looks = []

        def look():
            looks.append(1)
            return False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until, look, lambda fs: ([str(path)], [str(path / "1")]))
            await wait_all_tasks_blocked()
            mock_clock.jump(UNASKED - 1)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert len(looks) == 1


async def test_what_no_kernel_tells_is_found_all_the_same(path, autojump_clock):
    looks = iter([False, False, True])
    began = trio.current_time()
    await until(lambda: next(looks), lambda fs: ([str(path)], []))
    assert trio.current_time() - began <= 2 * UNASKED
