"""An HTTP/1.1 proxy in front of an S3 server: it counts, it is slow, and it fails as networks do."""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

# busy and failing: an answer before anything was done; reset: no answer before anything was done;
# lost: no answer after everything was done; truncated: half an answer after everything was done
Fault = Literal["failing", "busy", "reset", "lost", "truncated"]
FAULTS: tuple[Fault, ...] = ("failing", "busy", "reset", "lost", "truncated")
_ANSWERS = {"failing": (500, "InternalError"), "busy": (503, "SlowDown")}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request, with the server's status (0 for none) and what the proxy did to it."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    size: int = 0
    status: int = 0
    fault: Fault | None = None


class Proxy:
    """A running proxy, which `proxied` starts, and its requests so far in the order of their ends."""

    def __init__(self, upstream: str, *, rate: float, seed: int, latency: float) -> None:
        address = urlsplit(upstream)
        self.upstream = (address.hostname or "", address.port or 80)
        self.endpoint = ""
        self.requests: list[Request] = []
        self.latency = latency
        self.rate = rate
        self.choose: Callable[[Request], Fault | None] = self._at_random
        self._random = random.Random(seed)  # noqa: S311 - faults are no secrets
        self._lock = threading.Lock()

    def _at_random(self, _request: Request) -> Fault | None:
        return self._random.choice(FAULTS) if self._random.random() < self.rate else None

    def fault_for(self, request: Request) -> Fault | None:
        with self._lock:
            return self.choose(request)

    def log(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def clear(self) -> None:
        with self._lock:
            self.requests.clear()


@contextmanager
def proxied(upstream: str, *, rate: float = 0.0, seed: int = 1, latency: float = 0.0) -> Iterator[Proxy]:
    """Run a proxy on a free port of the loopback interface; it holds each request back for `latency` seconds.

    `rate` of the requests meet a fault, chosen by `seed`; assign `Proxy.choose` for chosen requests.
    """
    proxy = Proxy(upstream, rate=rate, seed=seed, latency=latency)

    class Handler(_Handler):
        the_proxy = proxy

    server = _Server(("127.0.0.1", 0), Handler)
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that go away are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    the_proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.upstream = HTTPConnection(*self.the_proxy.upstream, timeout=120)

    def finish(self) -> None:
        self.upstream.close()
        super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing; `Proxy.requests` tells."""

    def handle_any(self) -> None:
        body = self._body()
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        request = Request(
            method=self.command, path=unquote(address.path).lstrip("/"), query=query, size=len(body)
        )
        if self.the_proxy.latency:
            time.sleep(self.the_proxy.latency)
        fault = self.the_proxy.fault_for(request)
        status = 0
        try:
            status = self._answer(fault, body)
        finally:
            self.the_proxy.log(replace(request, status=status, fault=fault))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - the base class's names

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _answer(self, fault: Fault | None, body: bytes) -> int:
        if fault in _ANSWERS:
            return self._fail(*_ANSWERS[fault])
        if fault == "reset":
            self._reset()
            return 0
        status, headers, data = self._passed_on(body)
        if fault == "lost":
            self._reset()
            return status
        self.send_response_only(status)
        length = {name.lower(): value for name, value in headers}.get("content-length", str(len(data)))
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length", "keep-alive"}:
                self.send_header(name, value)
        if status not in {204, 304}:
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if fault == "truncated":
            self.wfile.write(data[: len(data) // 2])
            self._reset(hard=False)
        elif self.command != "HEAD":
            self.wfile.write(data)
        return status

    def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        dropped = {"connection", "expect", "transfer-encoding", "content-length"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        headers["Content-Length"] = str(len(body))
        for last in (False, True):
            try:
                self.upstream.request(self.command, self.path, body=body or None, headers=headers)
                answer: HTTPResponse = self.upstream.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            except (HTTPException, OSError):
                # the server closed a connection that was idle
                self.upstream.close()
                if last:
                    raise
        raise AssertionError

    def _fail(self, status: int, code: str) -> int:
        data = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        return status

    def _reset(self, *, hard: bool = True) -> None:
        self.close_connection = True
        if hard:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.rfile.close()
