# `diskq spool send`. Law: the messages of a spool are in its queue, so that they are sent as to any queue.

from __future__ import annotations

import argparse
import os

from diskq.cli.queue import verbs as queue_verbs
from diskq.cli.spool.view import check_spool

__all__ = ["send"]


def send(args: argparse.Namespace) -> None:
    if not args.create or (os.path.isdir(args.directory) and os.listdir(args.directory)):
        check_spool(args.directory, "; make it, or let --create make it")
    queue_verbs.send(args)
