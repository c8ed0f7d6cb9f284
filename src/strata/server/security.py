"""Who may talk to the server: rules over a request's head. They decide and touch nothing; `guard.py` asks them."""

import hashlib
import hmac
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from strata.errors import SettingsError
from strata.server.errors import ApiError
from strata.settings import ServerSettings

PUBLIC_PATHS = frozenset(("/", "/health", "/v1/health", "/favicon.ico"))
PUBLIC_PREFIX = "/assets/"  # the page; it asks its user for the key


@dataclass(frozen=True)
class Head:
    """What the rules look at."""

    method: str
    path: str
    host: str | None
    origin: str | None
    authorization: str | None
    api_key: str | None
    content_type: str | None
    content_length: str | None
    content_encoding: str | None = None


@dataclass(frozen=True)
class Rules:
    """Decides about a request by its head."""

    key_digests: tuple[bytes, ...]  # SHA-256 of every key; none: no key is asked for
    hosts: frozenset[str]  # names that a Host header may carry besides addresses and names of this machine
    origins: frozenset[str]  # exact origins of other sites that may call from a browser
    any_host: bool  # names are not checked: with a key, a page of another site can do nothing
    most_body_bytes: int

    def refusal(self, head: Head) -> ApiError | None:
        """Why the request is turned away; None: it may come in."""
        return self._host_refusal(head) or self._origin_refusal(head) or self._key_refusal(head) or self._body(head)

    def allows_origin(self, origin: str | None) -> bool:
        """Whether answers may be read by a page of this origin."""
        return origin is not None and origin in self.origins

    def _host_refusal(self, head: Head) -> ApiError | None:
        if self.any_host or (head.host is not None and self._knows_host(_host_name(head.host))):
            return None
        given = "there is no Host header" if head.host is None else f"the Host header is {head.host!r}"
        return ApiError(
            403,
            f"{given}; this server answers to IP addresses, localhost and this machine's "
            "name: add others by --allow-host",
        )

    def _knows_host(self, name: str) -> bool:
        return _is_address(name) or name in self.hosts or name.endswith((".localhost", ".local", ".internal"))

    def _origin_refusal(self, head: Head) -> ApiError | None:
        if head.origin is None or head.origin in self.origins:
            return None
        if head.host is not None and urlsplit(head.origin).netloc.lower() == head.host.lower():
            return None
        return ApiError(403, f"pages of {head.origin!r} may not call this server: allow them by --cors-origin")

    def _key_refusal(self, head: Head) -> ApiError | None:
        public = head.path in PUBLIC_PATHS or head.path.startswith(PUBLIC_PREFIX) or head.method == "OPTIONS"
        if public or not self.key_digests:
            return None
        given = head.api_key
        if given is None and head.authorization is not None:
            scheme, _, token = head.authorization.partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else None
        if given is None:
            return ApiError(
                401, "an API key is needed: Authorization: Bearer KEY, or x-api-key", code="missing_api_key"
            )
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self.key_digests]  # all of them, at equal cost
        return None if any(matches) else ApiError(401, "the API key is not valid", code="invalid_api_key")

    def _body(self, head: Head) -> ApiError | None:
        if head.method not in ("POST", "PUT", "PATCH"):
            return None
        length = int(head.content_length) if head.content_length and head.content_length.isdecimal() else None
        if length is not None and length > self.most_body_bytes:
            return too_large(self.most_body_bytes)
        kind = (head.content_type or "").partition(";")[0].strip().lower()
        if length != 0 and kind != "application/json":
            return ApiError(415, f"Content-Type is {head.content_type!r}; it must be application/json")
        if head.content_encoding is not None and head.content_encoding.strip().lower() not in ("", "identity"):
            return ApiError(415, f"Content-Encoding is {head.content_encoding!r}; send the body as it is")
        charset = _charset(head.content_type or "")
        if charset not in ("", "utf-8", "utf8", "us-ascii"):
            return ApiError(415, f"Content-Type names the charset {charset!r}; JSON is UTF-8")
        return None


def too_large(most_bytes: int) -> ApiError:
    """413."""
    return ApiError(413, f"the body is larger than {most_bytes:,} bytes: raise --max-body-mib", code="body_too_large")


def rules_of(settings: ServerSettings) -> Rules:
    """The rules that settings ask for. Raises SettingsError where a key is needed and there is none."""
    keys = read_keys(settings)
    is_loopback = is_loopback_host(settings.host)
    if not is_loopback and not keys:
        raise SettingsError(
            f"setting host: {settings.host} can be reached by others, so an API key is needed: "
            "--api-key, STRATA_API_KEY or --api-key-file"
        )
    hosts = frozenset(name.lower() for name in listed(settings.allow_host))
    origins = frozenset(listed(settings.cors_origin))
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
            raise SettingsError(f"setting cors_origin: {origin!r} is no origin; https://example.org is one")
    own = {"localhost", socket.gethostname().lower(), settings.host.lower()}
    return Rules(
        key_digests=tuple(_digest(key) for key in keys),
        hosts=hosts | own,
        origins=origins,
        any_host=not is_loopback and not hosts,
        most_body_bytes=settings.max_body_mib << 20,
    )


def read_keys(settings: ServerSettings) -> list[str]:
    """All keys: those of the setting, separated by commas, and those of the file, one a line."""
    keys = listed(settings.api_key)
    if settings.api_key is not None and not keys:
        raise SettingsError(
            f"setting api_key: {settings.api_key!r} holds no key; leave it out for a server without one"
        )
    if settings.api_key_file is not None:
        keys += _keys_of_file(Path(settings.api_key_file))
    for key in keys:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise SettingsError(
                "an API key holds letters, digits and signs of ASCII only: no HTTP header carries others"
            )
    return keys


def listed(text: str | None) -> list[str]:
    """The parts of a setting that holds several, separated by commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _keys_of_file(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"setting api_key_file: {path} cannot be read: {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise SettingsError(f"setting api_key_file: {path} holds no key; each line is one")
    return keys


def is_loopback_host(host: str) -> bool:
    """Whether only this machine reaches a server that is bound to `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _charset(content_type: str) -> str:
    """What a Content-Type says of its charset, lower case; "" if nothing."""
    parts = [part.strip().lower() for part in content_type.split(";")[1:]]
    return next((part.removeprefix("charset=").strip('"') for part in parts if part.startswith("charset=")), "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_name(host: str) -> str:
    """A Host header without its port, lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
