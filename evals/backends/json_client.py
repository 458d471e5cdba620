"""JSON over HTTP for the backends: one session, bounded replies, every failure a RequestError.

A failure says whether asking again may help, and how long the server wants to be left alone. The
API key comes from the environment; it is in no message, label or repr.
"""

import datetime
import email.utils
import json
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import aiohttp

from equipoise.evals.backends.event_lines import EventLines
from equipoise.evals.errors import RequestError, UsageError

__all__ = ["JsonClient", "parse_retry_after"]

MAX_REPLY_BYTES = 64 << 20
MAX_MESSAGE_CHARS = 400
MAX_CONNECTIONS = 1024  # the runner bounds what is in flight; this only guards the file descriptors

T = TypeVar("T")
_RETRYABLE_STATUS = frozenset({408, 425, 429})
_REFUSING_STATUS = frozenset({400, 413, 422})
# What SGLang, vLLM, OpenAI and others say when a prompt does not fit, or will not be answered.
_REFUSAL = re.compile(
    r"context[ _-]?(length|window|size)|maximum (context|model|input|allowed|sequence|total)|max_model_len"
    r"|longer than the|too long|too many tokens|token count exceeds|content[ _-]?(filter|policy|management)",
    re.IGNORECASE,
)


class JsonClient:
    """A connection pool to one base URL.

    Parameters
    ----------
    base_url : str
        ``http://host:port`` or ``https://...``, with or without a path.
    timeout_s : float
        For one request, from the first byte sent to the last received.
    api_key_env : str or None
        The environment variable that holds the bearer token.

    Raises
    ------
    UsageError
        The URL is not one, holds a user name or password, or the variable is not set.
    """

    def __init__(self, base_url: str, *, timeout_s: float = 600.0, api_key_env: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.username or parts.password:
            raise UsageError(
                f"the URL of {parts.hostname} holds a user name or password; "
                "put the key into an environment variable and name that"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"{base_url!r} is not a base URL such as http://127.0.0.1:30000")
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._key = _key_from(api_key_env) if api_key_env is not None else None
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    async def close(self) -> None:
        """Close all connections; the client can be used again afterwards."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST a JSON object; the parsed reply."""
        data = json.dumps(body, separators=(",", ":")).encode("ascii")
        return self._parse(path, await self._send("POST", path, data))

    async def post_events(self, path: str, body: Mapping[str, Any], take: Callable[[Any], None]) -> None:
        """POST a JSON object and hand every event of the streamed reply, parsed, to ``take``.

        A stream is whole only with its ``[DONE]``: one that ends without, or holds an error, is a failure.
        """
        data = json.dumps(body, separators=(",", ":")).encode("ascii")

        async def read(path: str, reply: aiohttp.ClientResponse) -> None:
            async for event in self._events(path, reply):
                take(self._parse(path, event, in_stream=True))

        await self._exchange("POST", path, data, read)

    async def get(self, path: str) -> Any:
        """GET a JSON value."""
        return self._parse(path, await self._send("GET", path, None))

    async def post_plain(self, path: str) -> str:
        """POST without a body; the reply as text."""
        return (await self._send("POST", path, None)).decode("utf-8", "replace")

    def fail(self, path: str, what: str, *, retryable: bool = False, refused: bool = False) -> NoReturn:
        """Raise a RequestError that names the URL; ``what`` may quote the server."""
        raise RequestError(
            f"{self.base_url}{path}: {self._quotable(what)}", retryable=retryable, refused=refused
        )

    # -- the wire --------------------------------------------------------------------------

    def _open(self) -> aiohttp.ClientSession:
        # Made lazily: a session belongs to the event loop that uses it.
        if self._session is None:
            headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=30),
                auto_decompress=False,  # a small reply must not become a huge one
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _send(self, method: str, path: str, data: bytes | None) -> bytes:
        return await self._exchange(method, path, data, self._read)

    async def _exchange(
        self,
        method: str,
        path: str,
        data: bytes | None,
        read: Callable[[str, aiohttp.ClientResponse], Awaitable[T]],
    ) -> T:
        url = self.base_url + path
        try:
            # A redirect would turn POST into GET and carry the key elsewhere.
            async with self._open().request(method, url, data=data, allow_redirects=False) as reply:
                if reply.status != 200:
                    self._fail_status(path, reply, await self._read(path, reply))
                return await read(path, reply)
        except TimeoutError as e:  # aiohttp's time-outs are of this kind too
            raise RequestError(f"{url}: no reply within {self._timeout_s:g} s", retryable=True) from e
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError) as e:
            raise RequestError(f"{url}: TLS failed: {self._quotable(str(e))}") from e
        except aiohttp.ClientConnectorError as e:
            raise RequestError(
                f"{url}: cannot connect ({self._quotable(e.strerror or str(e))})",
                retryable=True,
                unreachable=True,
            ) from e
        except (aiohttp.ClientError, OSError) as e:
            why = self._quotable(str(e)) or type(e).__name__
            raise RequestError(f"{url}: the connection broke ({why})", retryable=True) from e

    def _require_plain(self, path: str, reply: aiohttp.ClientResponse) -> None:
        if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
            self.fail(path, "the reply is compressed although that was not asked for")

    async def _events(self, path: str, reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The data of each server-sent event up to ``[DONE]``."""
        self._require_plain(path, reply)
        if reply.content_type != "text/event-stream":
            self.fail(path, f"asked for a stream, got {reply.content_type}; ask this endpoint without stream")
        total, pending, events = 0, bytearray(), EventLines()
        async for piece in reply.content.iter_any():
            total += len(piece)
            if total > MAX_REPLY_BYTES:
                self.fail(path, f"the reply is larger than {MAX_REPLY_BYTES >> 20} MiB")
            pending += piece
            if b"\n" not in piece:
                continue
            *lines, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            for line in lines:
                event = events.take(line)
                if event == b"[DONE]":
                    return
                if event is not None:
                    yield event
        self.fail(path, "the stream broke off before its end ([DONE])", retryable=True)

    async def _read(self, path: str, reply: aiohttp.ClientResponse) -> bytes:
        self._require_plain(path, reply)
        length = reply.content_length
        if length is not None and length <= MAX_REPLY_BYTES:
            return await reply.read()
        body = bytearray()
        if length is None:
            async for chunk in reply.content.iter_any():
                body += chunk
                if len(body) > MAX_REPLY_BYTES:
                    break
            else:
                return bytes(body)
        reply.close()  # the rest of it is not wanted
        self.fail(path, f"the reply is larger than {MAX_REPLY_BYTES >> 20} MiB")

    def _fail_status(self, path: str, reply: aiohttp.ClientResponse, body: bytes) -> NoReturn:
        status = reply.status
        message = _error_text(body)
        refused = status in _REFUSING_STATUS and _REFUSAL.search(message) is not None
        hint = {
            401: "; is the API key's environment variable right?",
            403: "; is the API key's environment variable right?",
            404: "; is the URL right?",
        }.get(status, "")
        raise RequestError(
            f"{self.base_url}{path}: HTTP {status}{hint}: {self._quotable(message)}",
            retryable=status in _RETRYABLE_STATUS or status >= 500,
            retry_after_s=parse_retry_after(reply.headers.get("Retry-After")),
            refused=refused,
        )

    def _parse(self, path: str, body: bytes, *, in_stream: bool = False) -> Any:
        try:
            value = json.loads(body, parse_constant=_not_finite)
        except (ValueError, RecursionError) as e:
            raise RequestError(
                f"{self.base_url}{path}: the reply is not JSON ({self._quotable(str(e))}): "
                f"{self._quotable(body[:200].decode('utf-8', 'replace'))}",
                retryable=True,
            ) from e
        if isinstance(value, dict) and value.get("error"):
            message = _error_text(body)
            refused = bool(_REFUSAL.search(message))
            # An error within a stream is of the generation, which may succeed when asked again.
            self.fail(
                path,
                f"HTTP 200 with an error inside: {message}",
                retryable=in_stream and not refused,
                refused=refused,
            )
        return value

    def _quotable(self, text: str) -> str:
        """A server's words, made harmless: bounded, on one line, printable, without our key."""
        if self._key is not None:
            text = text.replace(self._key, "***")
        if len(text) > MAX_MESSAGE_CHARS:
            text = text[:MAX_MESSAGE_CHARS] + "..."
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def parse_retry_after(value: str | None, *, now_unix_s: float | None = None) -> float | None:
    """Seconds to wait, from a Retry-After header (RFC 9110: seconds or an HTTP date); None if unusable."""
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"\d{1,9}(\.\d*)?", value):
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return max(0.0, when.timestamp() - (time.time() if now_unix_s is None else now_unix_s))


def _key_from(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"the environment variable {variable} is not set; put the API key there")
    if not key.isascii() or not key.isprintable():
        raise UsageError(
            f"the environment variable {variable} does not hold an API key (odd characters in it)"
        )
    return key


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"it holds the number {name}")


def _error_text(body: bytes) -> str:
    """The message in an error reply of any of the usual shapes, or its beginning."""
    text = body[:65536].decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "detail", "message"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    if isinstance(value, str):
        return value
    return json.dumps(value)
