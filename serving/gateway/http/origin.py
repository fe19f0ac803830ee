"""Refuses requests that a page of another site made a browser send, and allows those of the sites that settings name (CORS).

Without keys whoever reaches a gateway may use it, and on loopback that is every page that its user's browser has open: a name of the
page's own site may be turned to 127.0.0.1 (DNS rebinding), and forms and scripts may send to any address. So the name in `Host` must be
ours, and what browsers say of where a request comes from must say that it comes from here. A browser adds no key by itself, so with keys
this holds for our own pages alone, into which people type keys. Rule: nothing is resolved; an address or a name is compared as it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote_to_bytes

from serving import errors
from serving.settings import PORTS, is_loopback

FROM_HERE = frozenset({b"same-origin", b"none"})  # none: the user's own doing, such as an address typed in
PAGES = frozenset({b"/", b"/docs"})  # which show nothing of ours by themselves
OF_PAGES = b"/ui/"  # where their scripts and styles are
REMEMBERED = 256  # hosts, and origins, that were looked at
WAY_OUT = "list the names that lead here as allowed_hosts in tandem.yaml or with --allowed-hosts"


class OriginPolicy:
    """What one listener asks of Host, Origin and Sec-Fetch-Site.

    `host` is the address it was told to listen on; `allowed` are further names, `*.` before one means all below it.
    """

    def __init__(self, host: str, allowed: Collection[str], *, has_keys: bool) -> None:
        self._host = name_of(f"[{host}]" if ":" in host else host)
        self._names = frozenset(allowed)
        self._has_keys = has_keys
        self._or_keys = "" if has_keys else ", or use API keys"
        self._is_loopback = is_loopback(host)
        self._is_ours = lru_cache(REMEMBERED)(self._find)
        self._is_same = lru_cache(REMEMBERED)(self._compare)

    def check(self, headers: Mapping[bytes, bytes], address: str, method: bytes = b"", target: bytes = b"") -> None:
        """`headers` have their names in small letters; `address` is the one that the client connected to. Raises Forbidden.

        A link from another site to one of `PAGES` may be followed: what the page shows it asks for itself, as this site.
        A request without Host is let pass: HTTP/1.0 has none, and no browser leaves it out.
        """
        host = headers.get(b"host", b"")
        is_guarded = not self._has_keys or _is_page(target)
        if (self._names or (is_guarded and self._is_loopback)) and not self._is_ours(host, address):
            raise errors.Forbidden(
                f"Host is '{_shown(host)}', which is no name of this gateway; {WAY_OUT}{self._or_keys}"
            )
        if is_guarded:
            site = headers.get(b"sec-fetch-site")
            if site is not None and site.lower() not in FROM_HERE and _follows_link(headers, method, target):
                site = None
            self._check_origin(host, headers.get(b"origin"), site)

    def _check_origin(self, host: bytes, origin: bytes | None, site: bytes | None) -> None:
        if site is not None and site.lower() not in FROM_HERE:
            raise errors.Forbidden(
                f"a page of another site made the browser send this (Sec-Fetch-Site: {_shown(site)}); open this address yourself"
                f"{self._or_keys}"
            )
        if origin is not None and not self._is_same(origin, host):
            raise errors.Forbidden(
                f"Origin is '{_shown(origin)}' and Host '{_shown(host)}': this is not for pages of other sites; behind a proxy {WAY_OUT}"
                f"{self._or_keys}"
            )

    def _find(self, host: bytes, address: str) -> bool:
        name = name_of(host.decode("latin-1"))
        if not name or name == self._host or self._is_allowed(name):
            return True
        found, here = _address(name), _address(address)
        if found is None:
            return name == "localhost" or name.endswith(".localhost")
        return found.is_loopback or found == here

    def _compare(self, origin: bytes, host: bytes) -> bool:
        scheme, _, place = origin.decode("latin-1").lower().partition("://")
        if scheme not in PORTS:
            return False
        return _place(place, scheme) == _place(host.decode("latin-1"), scheme) or self._is_allowed(name_of(place))

    def _is_allowed(self, name: str) -> bool:
        if name in self._names:
            return True
        dots = [at for at, letter in enumerate(name) if letter == "."]
        return any(f"*{name[at:]}" in self._names for at in dots)


def _follows_link(headers: Mapping[bytes, bytes], method: bytes, target: bytes) -> bool:
    """Whether a browser opens one of our pages by itself, in a tab or window and in no frame."""
    fetch = headers.get(b"sec-fetch-mode", b"").lower(), headers.get(b"sec-fetch-dest", b"").lower()
    return method == b"GET" and target.partition(b"?")[0] in PAGES and fetch == (b"navigate", b"document")


def _is_page(target: bytes) -> bool:
    path = target.partition(b"?")[0]
    if b"%" in path:
        path = unquote_to_bytes(path)
    return path in PAGES or path.startswith(OF_PAGES)


def name_of(place: str) -> str:
    """The name or the bare address in HOST[:PORT], in small letters, without a last dot."""
    name = place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]
    return name.lower().removesuffix(".")


def _place(place: str, scheme: str) -> tuple[str, str]:
    port = place.rpartition("]")[2].partition(":")[2]
    return name_of(place), port or PORTS[scheme]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped if isinstance(found, IPv6Address) else None) or found


def _shown(value: bytes) -> str:
    return value[:80].decode("latin-1")


class AllowedOrigins:
    """Lets the scripts of pages of `origins` ask and read (CORS). Keys are judged behind it, as ever.

    Credentials, in the sense of CORS, are cookies and the like, which nothing here reads; so they are not allowed, and `*` means all.
    """

    PREFLIGHT = (
        b"HTTP/1.1 204 No Content\r\n"
        b"access-control-allow-methods: GET, HEAD, POST\r\n"
        b"access-control-allow-headers: Authorization, *\r\n"  # `*` is all but Authorization
        b"access-control-allow-private-network: true\r\n"  # of a page on the internet, where the gateway is not
        b"access-control-max-age: 600\r\n"
    )

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)

    def is_preflight(self, method: bytes, headers: Mapping[bytes, bytes]) -> bool:
        is_asked = method == b"OPTIONS" and b"access-control-request-method" in headers
        return is_asked and headers.get(b"origin") in self._origins

    def lines(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Of every answer; also to others, so that no cache gives theirs to this origin."""
        origin = headers.get(b"origin")
        if origin not in self._origins:
            return b"vary: Origin\r\n"
        return b"vary: Origin\r\naccess-control-allow-origin: %b\r\naccess-control-expose-headers: *\r\n" % origin


VARY = [(b"vary", b"Origin")]
