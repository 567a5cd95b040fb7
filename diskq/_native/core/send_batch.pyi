from collections.abc import Callable
from typing import Any

from trio.lowlevel import Task

class SendBatch:
    room: int
    def __init__(self, room: int) -> None: ...
    @property
    def tasks(self) -> list[Task]: ...
    @property
    def messages(self) -> list[Any]: ...

class Gathering:
    batch: SendBatch | None
    def __init__(self, buffer: object, current_task: Callable[[], Task], largest: int) -> None: ...
