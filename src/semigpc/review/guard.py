"""Who may ask the server anything: whoever has its address, which holds a secret, on this machine."""

import secrets
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
WRONG_TOKEN = (
    "This address does not open the review: its secret part is missing, or belongs to a server that has ended.\n\n"
    "Copy the whole address that `semigpc review` printed, or start it again. Nothing that you reviewed is lost.\n"
)
WRONG_HOST = "This server answers to 127.0.0.1 and localhost alone.\n"


class Guard:
    """Let a request through if it names this machine as its host and its path begins with the token, which is taken off.

    The host is checked because a page from elsewhere could have its own name point here. As the token is part of the path,
    whatever the page loads by a relative address carries it.

    Args:
        app: what is guarded.
        token: the secret.
        hosts: names of this machine, without port.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str] = HOSTS) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":  # nothing here serves one
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            with suppress(LocalProtocolError):  # the rest of the request was no HTTP, so the server has closed meanwhile
                await send(message)

        await self._answer(scope)(self._below_token(scope), receive, send_with_headers)

    def _answer(self, scope: Scope) -> ASGIApp:
        if _host_name(Headers(scope=scope).get("host", "")) not in self.hosts:
            return PlainTextResponse(WRONG_HOST, 403)
        token, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return PlainTextResponse(WRONG_TOKEN, 403)
        return self.app if slash else RedirectResponse(f"/{self.token}/")

    def _below_token(self, scope: Scope) -> Scope:
        _, _, rest = scope["path"].removeprefix("/").partition("/")
        return {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}


def _host_name(host: str) -> str | None:
    """Without its port; None for what is no name of a host."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # a bracket that is not closed, say
        return None
