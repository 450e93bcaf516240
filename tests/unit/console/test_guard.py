"""Only a browser that was given the token may ask, and only the console's own page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metaquorum.cli.local.demo_checks import KAFKA_DATA
from metaquorum.console.answers import STATIC
from metaquorum.console.guard import COOKIE
from tests.unit.console.asked import PORT, TOKEN, Asked

PAGE = sorted(STATIC.iterdir())


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked(KAFKA_DATA)


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_page_can_use(asked: Asked) -> None:
    answer = asked.get(f"/?token={TOKEN}", cookie=False)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}-{PORT}={TOKEN};")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert asked.get("/").status == 200


@pytest.mark.parametrize(
    ("path", "headers", "status", "sentence"),
    [
        ("/?token=wrong", {}, 403, "The token is wrong"),
        ("/?token=%C3%A9", {}, 403, "The token is wrong"),
        ("/", {"cookie": ""}, 403, "The token is missing"),
        ("/api/log", {"cookie": f"{COOKIE}-{PORT}=t0ke"}, 403, "The token is wrong"),
        (f"/api/log?token={TOKEN}", {"cookie": ""}, 403, "The token is missing"),
        ("/", {"host": f"evil.example:{PORT}"}, 421, "answers only to 127.0.0.1"),
        ("/", {"host": "127.0.0.1"}, 421, "answers only to 127.0.0.1"),
        ("/", {"host": ""}, 421, "answers only to 127.0.0.1"),
        ("/api/log", {"origin": "http://evil.example"}, 403, "Another page"),
        ("/api/log", {"origin": "null"}, 403, "Another page"),
        ("/api/log", {"origin": "http://127.0.0.1:80"}, 403, "Another page"),
        ("/api/log", {"sec-fetch-site": "cross-site"}, 403, "Another page"),
        ("/api/log", {"sec-fetch-site": "same-site"}, 403, "Another page"),
    ],
)
def test_what_may_not_ask_gets_one_sentence(
    asked: Asked, path: str, headers: dict[str, str], status: int, sentence: str
) -> None:
    answer = asked.get(path, headers)
    assert answer.status == status and sentence in answer.body.decode()
    assert answer.body.count(b"\n") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(asked: Asked, method: str) -> None:
    assert asked.get("/api/log", method=method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/",
        "/api",
        "/api/nothing",
        "//",
        "/x",
    ],
)
def test_no_path_is_served_but_those_of_the_page(asked: Asked, path: str) -> None:
    assert asked.get(path).status == 404


@pytest.mark.parametrize("path", ["/", "/api/log", "/static/main.js", "/nothing", "/?token=x"])
def test_every_answer_binds_the_page(asked: Asked, path: str) -> None:
    headers = asked.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'" and "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


@pytest.mark.parametrize("path", PAGE, ids=[path.name for path in PAGE])
def test_a_file_of_the_page_is_served_and_needs_no_other_host(asked: Asked, path: Path) -> None:
    answer = asked.get(f"/static/{path.name}")
    assert answer.status == 200 and answer.body == path.read_bytes()
    text = path.read_text("utf-8")
    hosts = set(re.findall(r"https?://([\w.]+)", text)) - {"www.w3.org"}
    assert hosts == set(), "the names of SVG's and XML's namespaces are no requests"
    banned = r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function|\bon\w+=\""
    assert re.findall(banned, text) == [], "texts of a log could become markup or code"
    imported = re.findall(r"^import .* from \"\./([\w.]+)\";$", text, re.MULTILINE)
    assert set(imported) <= {each.name for each in PAGE}


def test_the_page_has_no_script_or_style_of_its_own(asked: Asked) -> None:
    page = asked.get("/").body.decode()
    assert re.findall(r"<style|style=|<script(?![^>]* src=\"/static/)", page) == []
    for landmark in ("<header", "<nav", "<main", "<footer", 'role="search"', 'lang="en"'):
        assert landmark in page
