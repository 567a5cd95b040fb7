# The loop of a consumer in a group: it makes commits durable, and claims partitions.
#
# Law: a commit waits for the disk only if its caller asks for it; a partition that its member released, or
# died with, is taken over at the next attempt to claim it.

from __future__ import annotations

from collections.abc import Callable

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.offset_loop import OffsetLoop
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.engine.stream.membership import Membership

__all__ = ["GroupLoop"]

# Seconds between two looks at partitions that are to be given up, but of which something is in hand.
_SOON = 0.02


class GroupLoop(OffsetLoop[Membership]):
    """One member of a group: what it has claimed, and the tasks that sync its commits and claim more."""

    kind = "group"
    subject = "offsets"

    def __init__(
        self, engine: Membership, executor: SyncExecutor, path: str, claim_more: Callable[[], bool]
    ) -> None:
        """`claim_more` is called in every `claim_interval`, and soon again if it returns True."""
        self._claim_more = claim_more
        super().__init__(engine, executor, path)

    def begin(self) -> bool:
        """Return False: this loop runs as a task, which claims partitions, from the beginning."""
        return False

    @enable_ki_protection
    async def run(self) -> None:
        """Sync commits as the base class does, and try to claim more partitions in every `claim_interval`."""
        # Shielded: under cancellation the nursery must have no exception of its own, which would replace that
        # of the block; and a block that is shielded itself goes on to claim.
        with self.event_loop.scope(shield=True):
            async with self.event_loop.open_nursery() as nursery:
                self.event_loop.start(nursery, self._claim_now_and_then, name=f"claims of {self.title}")
                await super().run()
                nursery.cancel_scope.cancel()

    @enable_ki_protection  # an interrupt comes to the main task: here it would end the claims alone
    async def _claim_now_and_then(self) -> None:
        interval = self.engine.options.claim_interval
        is_soon = False
        while True:
            await self.event_loop.sleep_for(min(_SOON, interval) if is_soon else interval)
            is_soon = False
            if self._failure is None and not self.is_closing:
                try:
                    is_soon = self._claim_more()
                except Exception as failure:
                    self._break(failure)
