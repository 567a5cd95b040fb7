# The end of a handle's own `async with` block. Law: an exception of the block leaves it unchanged.
#
# Trio closes its resources with a checkpoint, also after an exception. If the scope around the block is
# cancelled as well, that checkpoint raises Cancelled, and the exception is lost.

from __future__ import annotations

from types import TracebackType

import trio

from diskq.channels.core.event_loops.seam import running_event_loop

__all__ = ["Leaving"]


class Leaving(trio.abc.AsyncResource):
    """A resource whose `aclose` is its `close` and a checkpoint."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do what `close` does, then pass a checkpoint. `Cancelled` means: it is closed."""
        self.close()
        await running_event_loop().checkpoint()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            await self.aclose()
        else:
            self.close()
