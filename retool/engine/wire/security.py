"""Keys: `Keyring` checks them and issues tokens, `KeyGuard` refuses requests without one, `SizeGuard` large bodies."""

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retool.engine.wire.errors import ApiError, as_api_error

logger = logging.getLogger(__name__)

_Headers = Iterable[tuple[bytes, bytes]]


class Keyring:
    """The API key and what is derived from it. Comparisons take the same time wherever they fail."""

    def __init__(self, api_key: str) -> None:
        if not api_key:
            raise ValueError("An API key is needed.")
        self._key = api_key.encode()

    def issue(self, subject: str) -> str:
        """A token that names a run; it serves as the actor credential of that run."""
        return f"{subject}.{self._sign(subject)}"

    def subject(self, token: str) -> str | None:
        """Whom a token was issued for, or `None` if it was not issued with this key."""
        subject, _, signature = token.rpartition(".")
        if subject and hmac.compare_digest(signature.encode(), self._sign(subject).encode()):
            return subject
        return None

    def issue_download(self, path: str, lifetime_s: float) -> str:
        """The query string that lets a plain GET of `path` through until it expires."""
        expires = str(int(time.time() + lifetime_s))
        return f"expires={expires}&signature={self._sign(f'GET {path} {expires}')}"

    def admits(self, scope: Scope) -> bool:
        """Whether a request carries the key, a token issued with it, or a signed download address."""
        headers = dict(_lowered(scope["headers"]))
        bearer = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if any(hmac.compare_digest(offered, self._key) for offered in (headers.get(b"x-api-key", b""), bearer)):
            return True
        return self.subject(bearer.decode("latin-1")) is not None or self._admits_download(scope)

    def _admits_download(self, scope: Scope) -> bool:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        expires, signature = (query.get(name, [""])[0] for name in ("expires", "signature"))
        if scope["method"] != "GET" or not expires.isdecimal() or int(expires) < time.time():
            return False
        expected = self._sign(f"GET {scope['path']} {expires}")
        return hmac.compare_digest(signature.encode(), expected.encode())

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:40]


class KeyGuard:
    """Answers 401 to whatever comes without a key, `/health` aside."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on or refuses it."""
        if scope["type"] == "http" and scope["path"] != "/health" and not self._keyring.admits(scope):
            error = ApiError(
                401, "unauthorized", "The API key is missing or is not the one this server was started with."
            )
            await JSONResponse(error.body(), status_code=401)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class SizeGuard:
    """Refuses bodies above a limit, whether or not their length was announced."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, with a `receive` that counts."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(_lowered(scope["headers"])).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit_bytes:
            await JSONResponse(self._too_large().body(), status_code=413)(scope, receive, send)
            return
        received = 0

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit_bytes:
                raise self._too_large()
            return message

        await self._app(scope, counting_receive, send)

    def _too_large(self) -> ApiError:
        return ApiError(
            413, "body_too_large", f"A request body may have {self._limit_bytes} bytes; send smaller batches."
        )


class FaultGuard:
    """Turns whatever escapes the handlers into a reply below 500; the SDK would retry a 5xx for many minutes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; replies itself only if nothing was sent yet."""
        started = False

        async def watching_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watching_send)
        except Exception as error:  # noqa: BLE001 - the boundary: every fault becomes a reply
            api_error = as_api_error(error)
            if scope["type"] != "http" or started:
                logger.error("A reply was cut short: %s", api_error)
                return
            await JSONResponse(api_error.body(), status_code=api_error.status)(scope, receive, send)


def _lowered(headers: _Headers) -> Iterable[tuple[bytes, bytes]]:
    return ((name.lower(), value) for name, value in headers)
