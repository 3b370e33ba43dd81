"""What a browser may load for the page, and which requests are answered: other websites get nothing.

A website can point its own name at 127.0.0.1 (DNS rebinding), and any website can send a form or a file to a
server on the visitor's machine. Both show in the request's ``Host``, ``Origin`` and ``Sec-Fetch-Site``, which
scripts cannot change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

#: The page's own files alone. Gradio and Plotly evaluate code they bring along.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)

_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}


class OwnWebsiteOnly:
    """The application, closed to other websites.

    Args:
        address: What the server's socket is bound to. On loopback only requests to a name of this machine are answered.
        host: What the user called that address, however it was spelled.
        framed_by: The one website that may show the page in a frame.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        address: str,
        host: str,
        framed_by: str | None = None,
    ) -> None:
        self.app = app
        own = {address, host.strip("[]").lower()}
        self.names = _LOOPBACK_NAMES | own if ip_address(address).is_loopback else None
        policy = POLICY + "; frame-ancestors " + (framed_by or "'none'")
        self.headers = [
            (b"content-security-policy", policy.encode()),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *self.headers]}
            await send(message)

        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif (reason := self._refusal(scope)) is None:
            await self.app(scope, receive, send_with_headers)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send_with_headers({"type": "http.response.start", "status": 403, "headers": headers})
            await send_with_headers({"type": "http.response.body", "body": reason.encode()})

    def _refusal(self, scope: Any) -> str | None:
        """The reason why a request is not answered, or None."""
        given: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts, origins = given.get("host", []), given.get("origin", [])
        if self.names is not None:
            if len(hosts) != 1 or _hostname(hosts[0]) not in self.names:
                return f"Host must be a name of this machine, got {_short(hosts)}"
            own = [f"{scheme}://{hosts[0]}".lower() for scheme in ("http", "https")]
            if any(origin.lower() not in own for origin in origins):
                return f"Origin must be the page's own, got {_short(origins)}"
        reads = scope.get("method", "GET") in ("GET", "HEAD") and scope["type"] == "http"
        if not reads and any(
            site in ("cross-site", "same-site") for site in given.get("sec-fetch-site", [])
        ):
            return "Sec-Fetch-Site must be the page's own, got another website"
        return None


def _hostname(host: str) -> str | None:
    """The name in a ``Host`` header, without its port; None where it cannot be read."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


def _short(values: list[str]) -> str:
    return repr(", ".join(values)[:100])
