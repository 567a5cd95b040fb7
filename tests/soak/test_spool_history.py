# The judge of the soak test: what is right passes, and each way to break the promise is caught.

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tests.soak.destination import Request, packed, unpacked
from tests.soak.spool_history import BrokenPromise, Run, judged
from tests.soak.spool_sender import BATCH, message

History = tuple[list[Run], list[Request]]


def request(run: int, number: int, numbers: Iterable[int], fate: str = "answered") -> Request:
    return Request(run, number, fate, tuple(map(message, numbers)))


def history() -> History:
    """Killed after request 4 and before it was remembered, with a batch in hand of which a part was kept."""
    runs = [
        Run(0, sending=[range(150), range(150, 260)], sent=[range(150)], answered=[2, 4]),
        Run(1, sending=[range(260, 300)], sent=[range(260, 300)], answered=[1, 2, 3], is_finished=True),
    ]
    requests = [
        request(0, 1, [], "503"),
        request(0, 2, range(100)),
        request(0, 3, range(100, 150), "+reset"),
        request(0, 4, range(100, 200)),
        request(1, 1, range(100, 200)),
        request(1, 2, range(200, 240)),
        request(1, 3, range(260, 300)),
    ]
    return runs, requests


def test_what_is_right_passes_and_is_counted():
    figures = judged(*history())
    assert (figures.sent, figures.arrived, figures.kills) == (190, 280, 1)
    assert (figures.repeated_by_kills, figures.repeated_by_doubt) == (100, 50)
    assert figures.requests == {"answered": 5, "503": 1, "+reset": 1}


def test_what_a_killed_sender_left_on_its_way_may_come_after_the_next_ones():
    runs, requests = history()
    requests.insert(6, requests.pop(3))
    assert judged(runs, requests).repeated_by_kills == 100


# --- broken promises ------------------------------------------------------------------------------


def committed_before_it_was_delivered(runs: list[Run], requests: list[Request]) -> None:
    del requests[2:5]  # the sender was killed in between, and the next one begins behind it
    runs[0].answered = [2]


def skipped_a_batch(runs: list[Run], requests: list[Request]) -> None:
    del requests[-1]


def delivered_a_batch_too_early(runs: list[Run], requests: list[Request]) -> None:
    requests[-2:] = [replace(requests[-2], bodies=requests[-1].bodies), requests[-2]]


def turned_two_messages_round(runs: list[Run], requests: list[Request]) -> None:
    requests[1] = request(0, 2, [1, 0, *range(2, 100)])


def forgot_what_it_had_been_told(runs: list[Run], requests: list[Request]) -> None:
    runs[0].answered.append(5)
    requests.insert(4, request(0, 5, range(100, 200)))


def forgot_more_than_the_last_answer(runs: list[Run], requests: list[Request]) -> None:
    requests[4:5] = [request(1, 1, range(100)), request(1, 4, range(100, 200))]


def forgot_though_it_was_not_killed(runs: list[Run], requests: list[Request]) -> None:
    runs[0].is_finished = True


def changed_a_byte(runs: list[Run], requests: list[Request]) -> None:
    requests[1] = replace(requests[1], bodies=(*requests[1].bodies[:-1], message(99)[:-1] + b"?"))


def delivered_what_nobody_sent(runs: list[Run], requests: list[Request]) -> None:
    requests.append(request(1, 4, [300]))


def kept_what_came_behind_a_gap(runs: list[Run], requests: list[Request]) -> None:
    requests[5] = request(1, 2, [*range(200, 220), *range(221, 240)])


def made_a_batch_too_large(runs: list[Run], requests: list[Request]) -> None:
    requests[1:4] = [request(0, 2, range(BATCH + 1))]
    requests[2] = request(1, 1, range(BATCH + 1, 200))


BREACHES: dict[Callable[[list[Run], list[Request]], None], str] = {
    committed_before_it_was_delivered: "accepted, and never arrived",
    skipped_a_batch: "accepted, and never arrived",
    delivered_a_batch_too_early: "arrived after message",
    turned_two_messages_round: "arrived after message",
    forgot_what_it_had_been_told: "was told so, and it came again",
    forgot_more_than_the_last_answer: "was told so, and it came again",
    forgot_though_it_was_not_killed: "was told so, and it came again",
    changed_a_byte: "no message that anybody sent",
    delivered_what_nobody_sent: "nobody sent it",
    kept_what_came_behind_a_gap: "in the middle are gone",
    made_a_batch_too_large: "101 messages in one batch",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
def test_it_is_caught(breach):
    runs, requests = history()
    breach(runs, requests)
    with pytest.raises(BrokenPromise, match=BREACHES[breach]):
        judged(runs, requests)


# --- what it reads --------------------------------------------------------------------------------


def test_a_run_hears_lines():
    run = Run(3)
    for line in ("ready\n", "sending 5 9\n", "sent 5 9\n", "answered 1\n", "sending 9 10\n"):
        run.hear(line)
    assert run == Run(3, sending=[range(5, 9), range(9, 10)], sent=[range(5, 9)], answered=[1])
    run.hear("finished\n")
    assert run.is_finished


def test_what_was_packed_is_unpacked():
    bodies = [b"", b"one", b"\n" * 300]
    assert list(unpacked(packed(bodies))) == bodies
    with pytest.raises(AssertionError, match="cut short"):
        list(unpacked(packed(bodies)[:-1]))
