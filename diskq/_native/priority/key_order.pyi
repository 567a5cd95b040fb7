MOST_BUCKETS: int

class KeyOrder:
    @property
    def count(self) -> int: ...

class HeapOrder(KeyOrder):
    def __init__(self) -> None: ...

class BucketOrder(KeyOrder):
    def __init__(self, lowest: int, highest: int) -> None: ...
