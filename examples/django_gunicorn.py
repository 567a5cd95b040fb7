"""Accept orders by HTTP, and hand them on when the other side is there: Django under gunicorn, four workers.

    pip install diskqueue django gunicorn httpx
    gunicorn --workers 4 django_gunicorn:application

`POST /orders` answers when the order is on disk. Each worker has a slot of its own below outbox/: what one
that was killed has left is delivered by the next one that starts, or by an idle one. Here delivery appends to
a file; it would call another service. Run by itself, this program starts gunicorn, sends it eight orders, and
stops it when they are delivered.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import django
import httpx
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

import diskq

DELIVERED = Path("delivered")


def deliver(batch: diskq.Batch) -> None:
    with DELIVERED.open("ab") as file:
        file.write(b"".join(body + b"\n" for body in batch))


def order(request: HttpRequest) -> HttpResponse:
    outbox.put(request.body, durability="synced")
    return HttpResponse(status=202)


def main() -> None:
    socket = Path(f"server.{os.getpid()}")
    options = f"--workers 4 --bind unix:{socket} --log-level error --pythonpath {Path(__file__).parent}"
    server = subprocess.Popen([sys.executable, "-m", "gunicorn", *options.split(), "django_gunicorn"])
    try:
        while not socket.exists():
            if server.poll() is not None:
                sys.exit("gunicorn did not start")
            time.sleep(0.05)
        transport = httpx.HTTPTransport(uds=str(socket), retries=5)
        with httpx.Client(transport=transport, base_url="http://here", timeout=60.0) as client:
            for number in range(8):
                print(client.post("/orders", content=b"order %d" % number).status_code)
        while not DELIVERED.exists() or len(DELIVERED.read_bytes().splitlines()) < 8:
            time.sleep(0.05)
    finally:
        server.terminate()
        server.wait()
    print(sorted(DELIVERED.read_bytes().splitlines()))


if __name__ == "__main__":
    main()
else:  # a worker
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["here"], SECRET_KEY="of this example")
    urlpatterns = [path("orders", order)]
    django.setup()
    outbox = diskq.Spool("outbox", deliver, slots=True)
    application = get_wsgi_application()
