# The verbs of `diskq hub`. The module of the hub is imported when one of them runs: it needs grpcio, which
# other commands do not need.

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

import trio

from diskq.cli.core import units
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.parsing import CommandError, UsageError
from diskq.cli.core.stdio import stderr, stdout
from diskq.cli.core.terminal import has_rich, note, preview, show_table, warnings_left_out
from diskq.cli.core.terminal import status as live_line
from diskq.distribution import install_command

if TYPE_CHECKING:
    from diskq.hub import HubClient, ReplicationStatistics

__all__ = ["push", "serve", "status"]


def _hub() -> ModuleType:
    try:
        import diskq.hub
    except ModuleNotFoundError as missing:
        if missing.name != "grpc":
            raise
        raise CommandError(f"hubs need grpcio: {install_command('hub')}") from None
    return diskq.hub


# --- serve ----------------------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> None:
    hub = _hub()
    if (args.tls_certificate is None) != (args.tls_key is None):
        raise UsageError("--tls-certificate and --tls-key go together")
    if args.tls_client_ca is not None and args.tls_certificate is None:
        raise UsageError("--tls-client-ca needs --tls-certificate and --tls-key")
    tls = None
    if args.tls_certificate is not None:
        tls = hub.Tls(certificate=args.tls_certificate, key=args.tls_key, ca=args.tls_client_ca)
    changes: dict[str, Any] = {"quota": args.quota}
    limits = {
        "max_open_journals": args.max_open,
        "max_connections": args.max_connections,
        "max_client_requests": args.max_client_requests,
        "handshake_timeout": args.handshake_timeout,
        "idle_connection_timeout": args.idle_connection_timeout,
    }
    changes.update((name, value) for name, value in limits.items() if value is not None)
    try:
        tokens = None if args.token_file is None else hub.Tokens.read(args.token_file)
        opening = hub.open_hub(
            args.root, args.listen, tls=tls, tokens=tokens, insecure=args.insecure, **changes
        )
    except ValueError as wrong:
        raise CommandError(str(wrong).replace("insecure=True", "--insecure")) from None
    run_async(_serve, opening)


async def _serve(opening: Any) -> None:
    hub = None
    try:
        async with opening as hub:
            stdout.print(hub.address, flush=True)
            await trio.sleep_forever()
    finally:
        if hub is not None:
            done = hub.statistics()
            size = units.show_size(done.written_bytes)
            note(f"received {done.accepted} messages ({size}) in {done.puts} requests")


# --- push -----------------------------------------------------------------------------------------


def push(args: argparse.Namespace) -> None:
    journal = args.journal or os.path.basename(os.path.abspath(args.path))
    changes = {} if args.batch is None else {"max_messages": args.batch}
    run_async(_push, args, journal, _client(args), changes)


async def _push(args: argparse.Namespace, journal: str, client: HubClient, changes: dict[str, Any]) -> None:
    replicate = _hub().replicate
    latest: ReplicationStatistics | None = None
    complaint: str | None = None
    is_live = has_rich(stderr)
    # Failures are reported here.
    with warnings_left_out(), live_line("") if is_live else contextlib.nullcontext() as say:

        def show(now: ReplicationStatistics) -> None:
            nonlocal latest, complaint
            latest = now
            if say is not None:
                say(_line(now))
            elif now.last_error is not None and now.last_error != complaint:
                note(f"warning: {preview(now.last_error.encode())}; trying again")
            complaint = now.last_error

        try:
            async with client:
                await replicate(
                    args.path,
                    client,
                    journal,
                    follow=args.follow,
                    from_oldest=args.from_oldest,
                    on_progress=show,
                    **changes,
                )
        except ValueError as wrong:
            raise CommandError(str(wrong)) from None
        finally:
            if latest is not None:
                note(_line(latest))


def _line(now: ReplicationStatistics) -> str:
    parts = [f"{now.delivered} messages copied ({units.show_size(now.delivered_bytes)})"]
    if now.next_offset is not None:
        parts.append(f"the hub expects {now.next_offset}")
        if now.source_next_offset is not None:
            parts.append(f"{max(0, now.source_next_offset - now.next_offset)} to go")
    if now.last_error is not None:
        parts.append(f"{now.failures} failures: {preview(now.last_error.encode())}")
    return ", ".join(parts)


# --- status ---------------------------------------------------------------------------------------


def status(args: argparse.Namespace) -> None:
    found = run_async(_ask, _client(args))
    if args.json:
        journals = [dataclasses.asdict(each) for each in found.journals]
        stdout.print(
            json.dumps({"journals": journals, "statistics": found.statistics}, separators=(",", ":"))
        )
        return
    show_table(
        ("CLIENT", "JOURNAL", "FIRST", "NEXT", "SIZE"),
        [
            (
                each.client,
                each.journal,
                str(each.first_offset),
                str(each.next_offset),
                units.show_size(each.bytes_on_disk),
            )
            for each in found.journals
        ],
        numeric=("FIRST", "NEXT", "SIZE"),
    )


async def _ask(client: HubClient) -> Any:
    async with client:
        return await client.status()


def _client(args: argparse.Namespace) -> HubClient:
    hub = _hub()
    files = (args.tls_ca, args.tls_certificate, args.tls_key)
    try:
        tls = None
        if args.tls or any(files):
            tls = hub.Tls(ca=args.tls_ca, certificate=args.tls_certificate, key=args.tls_key)
        token = None if args.token_file is None else hub.access.read_token(args.token_file)
        made: HubClient = hub.HubClient(
            args.address, args.client_id, token=token, tls=tls, insecure=args.insecure
        )
    except ValueError as wrong:
        raise CommandError(
            str(wrong).replace("insecure=True", "--insecure").replace("give tls", "give --tls")
        ) from None
    return made
