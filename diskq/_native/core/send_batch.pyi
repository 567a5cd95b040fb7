from collections.abc import Callable
from typing import Any

class SendBatch:
    room: int
    def __init__(self, room: int) -> None: ...
    @property
    def tasks(self) -> list[Any]: ...
    @property
    def messages(self) -> list[Any]: ...

class Gathering:
    batch: SendBatch | None
    def __init__(self, buffer: object, current_task: Callable[[], object], largest: int) -> None: ...
