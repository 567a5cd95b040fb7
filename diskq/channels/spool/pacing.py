# The waits before a try. Law: `resume` ends every wait here, and no message is taken during a wait.

from __future__ import annotations

from diskq.channels.core.event_loops.seam import Scope, running_event_loop
from diskq.engine.spool.trial import Pace
from diskq.options import SpoolOptions

__all__ = ["Pacing"]


class Pacing(Pace):
    """The pacing of one spool's task. Times are on the loop's clock."""

    def __init__(self, options: SpoolOptions) -> None:
        super().__init__(options)
        self._event_loop = running_event_loop()
        self._resumed = self._event_loop.event()
        self._sleep: Scope | None = None

    def resume(self) -> None:
        """End every pause and wait: try now."""
        super().resume()
        self._resumed.set()
        self._resumed = self._event_loop.event()
        if self._sleep is not None:
            self._sleep.cancel()

    async def turn(self, items: int) -> None:
        """Return when `items` messages may be tried. It is a cancellation point only if it waits."""
        while True:
            while self.is_held:
                await self._resumed.wait()
            now = self._event_loop.clock()
            if (free_at := self.free_at(now)) is None:
                break
            self.next_try_at = free_at
            if not await self.sleep_until(free_at):
                break
        self.begin(items, now)

    async def sleep(self, seconds: float) -> bool:
        """Sleep so long. False: `resume` ended it."""
        return await self.sleep_until(self._event_loop.clock() + seconds)

    async def sleep_until(self, at: float) -> bool:
        """Sleep until then. False: `resume` ended it."""
        with self._event_loop.scope() as self._sleep:
            await self._event_loop.sleep_until(at)
        was_resumed, self._sleep = self._sleep.cancelled_caught, None
        return not was_resumed
