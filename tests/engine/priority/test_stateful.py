# A store against a sorted list: whatever is done with it, and however often it is closed, killed and opened
# again, it holds what the list does, in that order; and its files say the same to the oracle.

from __future__ import annotations

import bisect
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diskq._native.priority.record_table import PriorityRecord
from diskq.engine.priority.store import PriorityStore
from tests.engine.stores import disk, opened, stored
from tests.reference import taskflux_oracle as oracle
from tests.sampling import examples

WORDS = st.sampled_from(["memory", "written", "synced"])
SMALL: dict[str, Any] = {"soft_limit": 250, "hard_limit": 400, "snapshot_segments": 3, "sync_every": 5}


class Model:
    """One queue: (key, id, payload) of what is ready, in order, and the last id."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, int, bytes]] = []
        self.last_id = 0


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fs = disk()
        self.store: PriorityStore = opened(self.fs, **SMALL)
        self.models = {"": Model()}
        self.in_hand: list[tuple[str, PriorityRecord]] = []

    def teardown(self) -> None:
        self.store.close()

    def a_name(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.models)))

    @rule(data=st.data(), keys=st.lists(st.integers(-3, 3), max_size=6), word=WORDS)
    def send(self, data: st.DataObject, keys: list[int], word: Any) -> None:
        name = self.a_name(data)
        model = self.models[name]
        payloads = [b"%d" % (model.last_id + 1 + i) * (i + 1) for i in range(len(keys))]
        ids = self.store.put_many(self.store.queue(name), payloads, keys, durability=word)
        assert ids == range(model.last_id + 1, model.last_id + 1 + len(keys))
        model.last_id += len(keys)
        for each in zip(keys, ids, payloads, strict=True):
            bisect.insort(model.ready, each)

    @rule(data=st.data(), most=st.integers(1, 5))
    def receive(self, data: st.DataObject, most: int) -> None:
        name = self.a_name(data)
        records = self.store.get_many(self.store.queue(name), most)
        model = self.models[name]
        assert [(r.priority, r.id, r.body) for r in records] == model.ready[:most]
        del model.ready[:most]
        self.in_hand += [(name, record) for record in records]

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), is_ack=st.booleans(), word=WORDS)
    def settle(self, data: st.DataObject, is_ack: bool, word: Any) -> None:
        name = data.draw(st.sampled_from(sorted({name for name, _ in self.in_hand})))
        own = [record for each, record in self.in_hand if each == name]
        chosen = data.draw(st.lists(st.sampled_from(own), unique_by=id, min_size=1))
        queue = self.store.queue(name)
        if is_ack:
            self.store.ack_many(queue, chosen, durability=word)
        else:
            self.store.nack_many(queue, chosen)
            for r in chosen:
                bisect.insort(self.models[name].ready, (r.priority, r.id, r.body))
        self.in_hand = [pair for pair in self.in_hand if pair[1] not in chosen]

    @rule(name=st.sampled_from(["a", "b"]), word=WORDS)
    def create_or_delete(self, name: str, word: Any) -> None:
        if name in self.models:
            self.store.delete_queue(name, durability=word)
            del self.models[name]
            self.in_hand = [pair for pair in self.in_hand if pair[0] != name]
        else:
            self.store.create_queue(name, implementation="QA", priority_range=(-3, 3), durability=word)
            self.models[name] = Model()

    @rule()
    def snapshot(self) -> None:
        self.store.snapshot()

    @rule(is_killed=st.booleans())
    def open_again(self, is_killed: bool) -> None:
        if is_killed:
            self.store.flush()
            self.fs = self.fs.kill()
        else:
            self.store.close()
        self.store = opened(self.fs, **SMALL)
        assert (self.store.repairs, self.store.warnings) == ((), {})
        for name, record in self.in_hand:
            bisect.insort(self.models[name].ready, (record.priority, record.id, record.body))
        self.in_hand = []

    @invariant()
    def they_agree(self) -> None:
        assert [info.name for info in self.store.queues()] == sorted(self.models)
        for name, model in self.models.items():
            info = self.store.info(self.store.queue(name))
            in_hand = sum(each == name for each, _ in self.in_hand)
            assert (info.ready, info.in_flight, info.last_id) == (len(model.ready), in_hand, model.last_id)

    @invariant()
    def the_files_say_the_same(self) -> None:
        if not self.store.log.is_flushed:
            return
        found: oracle.State = stored(self.fs)
        for name, model in self.models.items():
            in_hand = [(r.priority, r.id, r.body) for each, r in self.in_hand if each == name]
            assert found[name].ordered() == sorted(model.ready + in_hand)
            assert found[name].last_id == model.last_id


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
