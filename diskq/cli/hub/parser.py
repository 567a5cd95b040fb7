# `diskq hub`: its verbs, their options, and what their help teaches.

from __future__ import annotations

from diskq.cli.core.parsing import CommandParser, Commands, add_command, add_noun
from diskq.cli.hub import verbs as hub_verbs
from diskq.distribution import install_command

__all__ = ["add_parser"]

ABOUT = f"""
A hub receives journals (sej's files) from many machines and keeps each as <ROOT>/<client id>.<journal>,
synced before it answers. The protocol is sej's (gRPC), so either end may be sej's.

Needs `{install_command("hub")}`. A hub that others can reach needs TLS, and tokens or certificates.
"""

EXAMPLES = """
  diskq hub serve /srv/journals --listen localhost:7070
  diskq hub push journals/web --address localhost:7070 --client-id web1 --follow
  diskq hub status --address localhost:7070
"""

ABOUT_SERVE = """
Listen, and keep what clients put, until interrupted (Ctrl-C, SIGTERM): requests under way are then completed,
and the journals closed. The address is printed on stdout.

Each line of a token file is a token (16 characters or more), followed by the ids of its clients if it is not
for all.
"""

EXAMPLES_SERVE = r"""
  diskq hub serve /srv/journals
  diskq hub serve /srv/journals --listen 0.0.0.0:7070 --tls-certificate hub.pem --tls-key hub.key \
      --token-file tokens
  diskq hub serve /srv/journals --listen 10.0.0.1:7070 --insecure --quota 50GiB
"""

ABOUT_PUSH = """
Copy a journal into a hub, from where the hub's copy ends, until the hub has all messages; with --follow it
goes on. Another process may write the journal meanwhile. While the hub cannot be reached, it tries again.
One process at a time may push into a journal.

It stops at what cannot be copied: messages that were removed before the hub had them, or damage.
"""

EXAMPLES_PUSH = """
  diskq hub push journals/web --address localhost:7070 --client-id web1
  diskq hub push journals/web --address hub:7070 --client-id web1 --follow --tls --token-file token
"""

ABOUT_STATUS = """
Show the journals of a hub, with the offset that it expects next of each, and its statistics.
"""

EXAMPLES_STATUS = """
  diskq hub status --address localhost:7070
  diskq hub status --address localhost:7070 --json | jq '.journals[] | select(.client == "web1")'
"""


def add_parser(nouns: Commands) -> None:
    verbs = add_noun(nouns, "hub", "journals copied across machines", ABOUT, EXAMPLES)

    serve = add_command(verbs, "serve", "run a hub", ABOUT_SERVE, EXAMPLES_SERVE)
    serve.add_argument("root", metavar="ROOT", help="the directory of the journals")
    serve.add_argument(
        "--listen",
        default="localhost:7070",
        metavar="ADDRESS",
        help="host:port (port 0: any) or unix:PATH (default: localhost:7070)",
    )
    serve.add_argument("--tls-certificate", metavar="FILE", help="certificate, PEM (default: no TLS)")
    serve.add_argument("--tls-key", metavar="FILE", help="its key, PEM (default: none)")
    serve.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        help="accept only clients whose certificate this authority has signed (default: any)",
    )
    serve.add_argument(
        "--token-file", metavar="FILE", help="accept only clients with one of these tokens (default: all)"
    )
    serve.add_flag("--insecure", help="go without TLS and tokens, on a network of your own (default: refuse)")
    serve.add_size("--quota", help="bytes that each client may have (default: no limit)")
    serve.add_count("--max-open", help="journals that are open at a time (default: 256)")
    serve.add_count(
        "--max-connections",
        help="connections at a time; one more is closed at once (default: 500)",
    )
    serve.add_count(
        "--max-client-requests",
        help="requests that a client may have under way; more are refused for now (default: 32)",
    )
    serve.add_duration(
        "--handshake-timeout",
        help="close a connection without a first request after this time (default: 10s)",
    )
    serve.add_duration(
        "--idle-connection-timeout",
        help="close a connection without a request under way after this time (default: 60s)",
    )
    serve.set_defaults(run=hub_verbs.serve)

    push = add_command(verbs, "push", "copy a journal into a hub", ABOUT_PUSH, EXAMPLES_PUSH)
    push.add_path("journal", "DIR")
    _add_connection(push)
    push.add_argument(
        "--client-id", required=True, metavar="ID", help="the id of this client: letters, digits and _ : # -"
    )
    push.add_argument("--journal", metavar="NAME", help="its name at the hub (default: the name of DIR)")
    push.add_flag("--follow", help="go on until interrupted (default: stop at the end)")
    push.add_flag(
        "--from-oldest",
        help="begin the copy with the oldest message that is there, if earlier ones are gone "
        "(default: refuse)",
    )
    push.add_count("--batch", help="messages sent at a time at most (default: 10000)")
    push.set_defaults(run=hub_verbs.push)

    status = add_command(verbs, "status", "show the journals of a hub", ABOUT_STATUS, EXAMPLES_STATUS)
    _add_connection(status)
    status.add_json()
    status.set_defaults(run=hub_verbs.status, client_id="status")


def _add_connection(parser: CommandParser) -> None:
    parser.add_argument("--address", required=True, metavar="ADDRESS", help="host:port or unix:PATH")
    parser.add_flag("--tls", help="use TLS (default: without, on this machine only)")
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="the authority of the hub's certificate, PEM (default: public ones)"
    )
    parser.add_argument(
        "--tls-certificate", metavar="FILE", help="certificate, PEM, if the hub needs one (default: none)"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM (default: none)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="send the first token in it to the hub (default: none)"
    )
    parser.add_flag("--insecure", help="go without TLS although others could listen (default: refuse)")
