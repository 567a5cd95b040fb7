# `diskq spool status`: what waits, and the progress of delivery, once or repeatedly.

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import time
from datetime import UTC, datetime

from diskq.cli.core import units
from diskq.cli.core.parsing import UsageError
from diskq.cli.core.stdio import stderr, stdout
from diskq.cli.core.terminal import has_rich, preview, printable, say, shown
from diskq.cli.core.terminal import status as live_line
from diskq.cli.spool.view import SpoolView, look_at_spool, slots_of

__all__ = ["status"]

_INTERVAL = 1.0
_SECOND = 10**9


def status(args: argparse.Namespace) -> None:
    if args.interval is not None and not args.follow:
        raise UsageError("--interval goes with --follow")
    slots = slots_of(args.path)
    if slots and args.follow:
        raise UsageError("--follow is of one spool, and these are slots: name one of them, or use diskq top")
    for number, path in enumerate(slots or [args.path]):
        view = look_at_spool(path)
        if args.follow:
            _follow(args, view)
        elif args.json:
            stdout.print(_as_json(path, view))
        else:
            if number:
                say("")
            _show(path, view)


def _follow(args: argparse.Namespace, view: SpoolView) -> None:
    is_live = not args.json and stdout.is_terminal() and has_rich(stderr)
    with live_line(_line(view)) if is_live else contextlib.nullcontext(_print) as say:
        while True:
            if args.json:
                _print(_as_json(args.path, view))
            else:
                say(_line(view) if is_live else f"{_now()} {_line(view)}")
            time.sleep(_INTERVAL if args.interval is None else args.interval)
            view = look_at_spool(args.path)


def _print(text: str) -> None:
    stdout.print(text, flush=True)


def _as_json(path: str, view: SpoolView) -> str:
    facts = dataclasses.asdict(view.status) | {
        "path": path,
        "oldest_age": _oldest_age(view),
        "is_exact": view.is_exact,
        "is_open": view.is_open,
        "is_at_work": view.is_at_work,
        "holder": view.holder and dataclasses.asdict(view.holder),
    }
    return json.dumps(facts, separators=(",", ":"))


# --- text -----------------------------------------------------------------------------------------


def _show(path: str, view: SpoolView) -> None:
    status = view.status
    facts = {
        "spool": shown(path),
        "waiting": _waiting(view, "message" if view.status.depth == 1 else "messages"),
        "state": _state(view),
        "attempts": f"{status.attempts} of its first batch" if status.attempts else "",
        "last error": printable((status.last_error or "").encode()),
        "dead letters": str(status.dead_letters),
        "rates": f"{_rates(view)}" if view.is_at_work else "",
        "delivered": f"{status.delivered} since it was opened, after {status.failed_tries} failed tries"
        if view.is_at_work
        else "",
        "open in": str(view.holder) if view.is_open else "",
        "last open in": str(view.holder) if view.holder and not view.is_open else "",
    }
    for what, value in facts.items():
        if value:
            say(f"{what:14}{value}")


def _line(view: SpoolView) -> str:
    status = view.status
    parts = [_waiting(view, "waiting"), _state(view)]
    if view.is_at_work:
        parts.append(_rates(view))
    if status.attempts > 1:
        parts.append(f"attempt {status.attempts}")
    if status.dead_letters:
        parts.append(f"{status.dead_letters} dead")
    if status.last_error:
        parts.append(preview(status.last_error.encode()))
    return ", ".join(parts)


def _waiting(view: SpoolView, word: str) -> str:
    status, age = view.status, _oldest_age(view)
    about = "" if view.is_exact else "about "
    text = f"{about}{status.depth} {word} ({units.show_size(status.bytes)})"
    return text if age is None else f"{text}, the oldest for {units.show_duration(int(age * _SECOND))}"


def _state(view: SpoolView) -> str:
    status = view.status
    if not view.is_at_work:
        return "not being delivered" if view.is_open is False else "in use by a process that does not deliver"
    later = "" if status.next_try_at is None else _in(status.next_try_at)
    if status.is_paused:
        return f"paused, next try {later}" if later else "paused"
    if status.failures:
        return f"trying again {later}".rstrip()
    return "delivering" if status.depth else "idle"


def _rates(view: SpoolView) -> str:
    return f"{_number(view.status.arrival_rate)}/s in, {_number(view.status.delivery_rate)}/s out"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def _oldest_age(view: SpoolView) -> float | None:
    """Return seconds; None if no message waits, or its age is unknown."""
    accepted_at = view.status.accepted_at
    return None if accepted_at is None or not view.status.depth else max(0.0, time.time() - accepted_at)


def _in(moment: float) -> str:
    left = moment - time.time()
    return f"in {units.show_duration(int(left * _SECOND))}" if left > 0.05 else "now"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
