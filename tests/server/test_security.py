"""Who comes in and who does not: hosts, origins, keys, content types and sizes, decided and over real connections.

Through HTTP: strata.server.guard.
"""

import contextlib
import dataclasses
import itertools
import socket
from pathlib import Path
from typing import Any

import pytest

from strata.errors import SettingsError
from strata.server.security import Head, Rules, is_loopback_host, read_keys, rules_of
from strata.settings import ServerSettings, resolve
from tests.server.running import running

USUAL = Head("POST", "/v1/chat/completions", "127.0.0.1:8080", None, None, None, "application/json", "2")


def rules(**settings: Any) -> Rules:
    return rules_of(dataclasses.replace(ServerSettings(), **settings))


def status(rules: Rules, **head: Any) -> int:
    refusal = rules.refusal(dataclasses.replace(USUAL, **head))
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback_host(host)
    assert status(rules(host=host)) == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])
def test_what_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(SettingsError, match="an API key is needed"):
        rules(host=host)
    assert status(rules(host=host, api_key="k"), api_key="k") == 200


@pytest.mark.parametrize("given", ["", ",", " , "])
def test_a_key_that_is_none_is_refused_instead_of_ignored(given: str) -> None:
    with pytest.raises(SettingsError, match="holds no key"):
        rules(api_key=given)
    with pytest.raises(SettingsError, match="holds no key"):
        rules_of(resolve(environment={"STRATA_API_KEY": given}).server)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"content_encoding": "gzip"}, 415),
        ({"content_encoding": "identity"}, 200),
        ({"content_type": "application/json; charset=latin-1"}, 415),
        ({"content_type": 'application/json; charset="UTF-8"'}, 200),
    ],
)
def test_a_body_is_utf_8_and_not_packed(head: Any, expected: int) -> None:
    assert status(rules(), **head) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("[::1]:8080", 200),
        ("192.168.1.7:8080", 200),
        ("app.localhost", 200),
        ("my.internal", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        (None, 403),
    ],
)
def test_names_of_other_machines_are_refused_on_loopback(host: str | None, expected: int) -> None:
    assert status(rules(), host=host) == expected


def test_more_names_can_be_allowed() -> None:
    allowed = rules(allow_host="one.example, TWO.example")
    assert [status(allowed, host=name) for name in ("one.example", "two.example:1", "three.example")] == [200, 200, 403]


def test_with_a_key_on_an_open_address_any_name_works() -> None:
    assert status(rules(host="0.0.0.0", api_key="k"), host="pc.example", api_key="k") == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, 200),
        ("http://127.0.0.1:8080", 200),
        ("http://127.0.0.1:9999", 403),
        ("https://good.example", 200),
        ("http://good.example", 403),
        ("https://good.example.evil.example", 403),
        ("null", 403),
    ],
)
def test_pages_of_other_sites_are_refused(origin: str | None, expected: int) -> None:
    assert status(rules(cors_origin="https://good.example"), origin=origin) == expected


def test_origins_must_be_exact() -> None:
    for wrong in ("*", "good.example", "https://good.example/", "https://good.example/path"):
        with pytest.raises(SettingsError, match="is no origin"):
            rules(cors_origin=wrong)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({}, 401),
        ({"authorization": "Bearer one"}, 200),
        ({"authorization": "bearer two"}, 200),
        ({"api_key": "two"}, 200),
        ({"authorization": "Bearer three"}, 401),
        ({"authorization": "Basic one"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"api_key": ""}, 401),
        ({"api_key": "one,two"}, 401),
        ({"api_key": "on"}, 401),
    ],
)
def test_keys(head: dict[str, str], expected: int) -> None:
    assert status(rules(api_key="one,two"), **head) == expected


def test_every_path_but_health_and_the_page_needs_the_key() -> None:
    keyed = rules(api_key="one")
    public = ("/health", "/v1/health", "/", "/assets/app.js", "/favicon.ico")
    closed = ("/v1/models", "/metrics", "/slots", "/props", "/strata/status", "/strata/events", "/openapi.json", "/x")
    assert {status(keyed, method="GET", path=path) for path in public} == {200}
    assert {status(keyed, method="GET", path=path) for path in closed} == {401}


def test_keys_come_from_setting_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\n three \nfour\n")
    settings = dataclasses.replace(ServerSettings(), api_key="one,two", api_key_file=str(file))
    assert read_keys(settings) == ["one", "two", "three", "four"]
    file.write_text("# none\n")
    with pytest.raises(SettingsError, match="holds no key"):
        read_keys(settings)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_keys(dataclasses.replace(settings, api_key_file=str(tmp_path / "missing")))
    with pytest.raises(SettingsError, match="ASCII"):
        read_keys(dataclasses.replace(ServerSettings(), api_key="schlüssel"))


@pytest.mark.parametrize(
    ("content_type", "length", "expected"),
    [
        ("application/json", "2", 200),
        ("application/json; charset=utf-8", "2", 200),
        ("Application/JSON", "2", 200),
        ("text/plain", "2", 415),
        ("application/x-www-form-urlencoded", "2", 415),
        (None, "2", 415),
        (None, None, 415),
        (None, "0", 200),
        ("application/json", str((1 << 20) + 1), 413),
        ("application/json", str(1 << 20), 200),
    ],
)
def test_bodies(content_type: str | None, length: str | None, expected: int) -> None:
    assert status(rules(max_body_mib=1), content_type=content_type, content_length=length) == expected


def test_the_matrix_over_real_connections() -> None:
    """Every combination of key, host, origin and content type: the strictest rule that is broken answers."""
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with running(api_key="secret", cors_origin="https://good.example") as server:
        keys = {"none": {}, "wrong": {"x-api-key": "no"}, "right": {"authorization": "Bearer secret"}}
        hosts = {"own": {}, "foreign": {"host": "evil.example"}}
        origins = {"none": {}, "good": {"origin": "https://good.example"}, "evil": {"origin": "https://evil.example"}}
        kinds = {"json": {}, "plain": {"content-type": "text/plain"}}
        for key, host, origin, kind in itertools.product(keys, hosts, origins, kinds):
            headers = keys[key] | hosts[host] | origins[origin] | kinds[kind]
            status, answered, answer = server.request("POST", "/v1/chat/completions", body, headers)
            case = (key, host, origin, kind)
            if host == "foreign" or origin == "evil":
                assert status == 403, case
            elif key != "right":
                assert status == 401, case
            elif kind == "plain":
                assert status == 415, case
            else:
                assert status == 200, case
            shown = answered.get("access-control-allow-origin")
            assert shown == ("https://good.example" if origin == "good" else None), case
            assert status == 200 or isinstance(answer["error"]["message"], str)


def test_a_browsers_question_is_answered_for_allowed_origins_only() -> None:
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with running(cors_origin="https://good.example", api_key="secret") as server:
        status, headers, _ = server.request("OPTIONS", "/v1/messages", None, ask | {"origin": "https://good.example"})
        assert status == 204
        assert "authorization" in headers["access-control-allow-headers"]
        assert server.request("OPTIONS", "/v1/messages", None, ask | {"origin": "https://evil.example"})[0] == 403


def test_a_body_that_grows_past_the_limit_is_cut_off() -> None:
    with running(max_body_mib=1) as server:
        chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        head = "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall((head + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n").encode() + chunk * 66)
            connection.sendall(b"0\r\n\r\n")
            answer = b""
            with contextlib.suppress(ConnectionResetError):  # behind the answer: what was sent on is read by nobody
                while piece := connection.recv(10_000):
                    answer += piece
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"type":"error"' in answer.replace(b" ", b"")  # in Anthropic's shape
