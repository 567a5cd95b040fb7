"""Copies journals across machines: `open_hub` receives them, `HubClient` and `replicate` send them.

The protocol is that of sej's hub (gRPC), so either end may be sej's. Needs the extra `diskqueue[hub]`.
"""

from __future__ import annotations

from diskq.errors import HubError
from diskq.hub.access import Tls, Tokens
from diskq.hub.client import HubClient, HubStatus
from diskq.hub.replication import Progress, ReplicationStatistics, replicate
from diskq.hub.server import Hub, open_hub
from diskq.hub.store import HubJournal, HubStatistics, Range
from diskq.options import HubOptions, ReplicationOptions

__all__ = [
    "Hub",
    "HubClient",
    "HubError",
    "HubJournal",
    "HubOptions",
    "HubStatistics",
    "HubStatus",
    "Progress",
    "Range",
    "ReplicationOptions",
    "ReplicationStatistics",
    "Tls",
    "Tokens",
    "open_hub",
    "replicate",
]
