# A client of pyright's language server, as an editor is one. The server runs in a process of its own.

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Editor", "opened_editor"]

ROOT = Path(__file__).parent.parent


class Editor:
    """An editor with one file. Places in it are (line, column), from 0."""

    def __init__(self, server: subprocess.Popen[bytes], directory: Path) -> None:
        self._server = server
        self._requests = 0
        self._file = directory / "program.py"
        self._version = 0
        initialization = {
            "processId": None,
            "rootUri": directory.as_uri(),
            "workspaceFolders": [{"uri": directory.as_uri(), "name": "program"}],
            "capabilities": {
                "workspace": {"configuration": True},
                "textDocument": {"hover": {"contentFormat": ["markdown"]}},
            },
        }
        self._ask("initialize", initialization)
        self._send({"method": "initialized", "params": {}})

    def show(self, text: str) -> None:
        """Make `text` what the file has."""
        self._version += 1
        document: dict[str, Any] = {"uri": self._file.as_uri(), "version": self._version}
        if self._version == 1:
            document |= {"languageId": "python", "text": text}
            self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        else:
            changes = {"textDocument": document, "contentChanges": [{"text": text}]}
            self._send({"method": "textDocument/didChange", "params": changes})

    def hover(self, line: int, column: int) -> str:
        """What is shown for the name at a place."""
        found = self._ask_about("hover", line, column)
        return str(found["contents"]["value"]) if found else ""

    def completions(self, line: int, column: int) -> set[str]:
        """The words that are offered at a place."""
        found = self._ask_about("completion", line, column)
        return {item["label"] for item in found["items"]}

    def signatures(self, line: int, column: int) -> str:
        """The signature of the call whose arguments are typed at a place."""
        found = self._ask_about("signatureHelp", line, column)
        return "\n".join(each["label"] for each in found["signatures"])

    def _ask_about(self, what: str, line: int, column: int) -> Any:
        place = {
            "textDocument": {"uri": self._file.as_uri()},
            "position": {"line": line, "character": column},
        }
        return self._ask(f"textDocument/{what}", place)

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._requests += 1
        self._send({"id": self._requests, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" in message:
                self._answer(message)
            elif message.get("id") == self._requests:
                assert "error" not in message, message["error"]
                return message["result"]

    def _answer(self, request: dict[str, Any]) -> None:
        """Answer what the server asks: an editor has no settings but those of the directory."""
        if "id" in request:
            items = request.get("params", {}).get("items", ())
            is_settings = request["method"] == "workspace/configuration"
            self._send({"id": request["id"], "result": [None for _ in items] if is_settings else None})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._server.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        size = 0
        while (line := self._server.stdout.readline()) != b"\r\n":
            assert line, "the server has ended"
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        found: dict[str, Any] = json.loads(self._server.stdout.read(size))
        return found


@contextmanager
def opened_editor(directory: Path) -> Iterator[Editor]:
    """An editor whose directory has no other program."""
    environment = Path(sys.prefix)
    settings = {"extraPaths": [str(ROOT)], "venvPath": str(environment.parent), "venv": environment.name}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-c", "from basedpyright.langserver import main; main()", "--stdio"]
    with subprocess.Popen(command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            yield Editor(server, directory)
        finally:
            server.kill()
