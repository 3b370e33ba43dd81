"""Which requests the page answers: other websites get nothing from it, under whatever name they come."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ordinate.web import serve
from ordinate.web.security import OwnWebsiteOnly

OWN = {"host": "127.0.0.1:7860"}


def ask(
    headers: dict[str, str],
    *,
    host: str = "127.0.0.1",
    named: str = "",
    method: str = "GET",
    kind: str = "http",
    **options: Any,
) -> list[dict]:
    """The messages that the guarded application sends for one request."""
    sent: list[dict] = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "method": method, "headers": raw}
    with ThreadPoolExecutor(1) as thread:  # a browser driven by this process leaves its loop running
        guarded = OwnWebsiteOnly(app, host, named or host, **options)
        thread.submit(asyncio.run, guarded(scope, None, send)).result()
    return sent


@pytest.mark.parametrize(
    "name", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST:8000", "[::1]:7860", "localhost"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_browser_of_this_machine_is_answered(name, method):
    for origin in ({}, {"origin": f"http://{name}"}):
        assert ask({"host": name, **origin}, method=method)[0]["status"] == 200


@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost@evil.example", "evil.example#localhost",
     "169.254.169.254", "", "localhost:port", "[::1", "localhost/evil.example"],
)  # fmt: skip
def test_a_website_that_points_its_own_name_here_is_refused(name):
    refused = ask({"host": name, "origin": f"http://{name}"})
    assert refused[0]["status"] == 403
    assert b"Host must be a name of this machine, got " in refused[1]["body"]


def test_a_request_without_a_host_or_with_two_is_refused():
    assert ask({})[0]["status"] == 403
    assert ask({"host": "localhost", "Host": "evil.example"})[0]["status"] == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:3000", "http://localhost:7860", "", "http://[127.0.0.1:7860",
     "file://127.0.0.1:7860", "http://127.0.0.1:7860@evil.example"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_another_website_is_refused_even_where_it_runs_on_this_machine(origin, method):
    refused = ask({**OWN, "origin": origin}, method=method)
    assert refused[0]["status"] == 403
    assert b"Origin must be the page's own" in refused[1]["body"]
    assert not any(b"access-control" in name for name, _ in refused[0]["headers"])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_websites_may_link_to_the_page_and_send_it_nothing(host, site):
    headers = {**OWN, "sec-fetch-site": site}
    assert ask(headers, host=host)[0]["status"] == 200
    assert ask(headers, host=host, method="POST")[0]["status"] == 403
    assert ask(headers, host=host, kind="websocket")[0]["type"] == "websocket.close"
    for own in ("same-origin", "none"):
        assert ask({**OWN, "sec-fetch-site": own}, host=host, method="POST")[0]["status"] == 200


def test_an_address_that_others_can_reach_has_names_the_server_cannot_know():
    assert (
        ask({"host": "box.lan:7860", "origin": "http://box.lan:7860"}, host="0.0.0.0")[0]["status"]
        == 200
    )


def test_only_the_named_website_may_show_the_page_in_a_frame():
    def ancestors(**options: Any) -> str:
        headers = dict(ask(OWN, **options)[0]["headers"])
        return headers[b"content-security-policy"].decode().rpartition("frame-ancestors ")[2]

    assert ancestors() == "'none'"
    assert ancestors(host="0.0.0.0") == "'none'"
    assert ancestors(host="0.0.0.0", framed_by="https://huggingface.co") == "https://huggingface.co"


def test_an_address_of_this_machine_that_was_named_is_one_of_its_names():
    assert ask({"host": "127.0.0.2:7860"}, host="127.0.0.2")[0]["status"] == 200
    assert ask({"host": "127.0.0.2:7860"})[0]["status"] == 403


@pytest.mark.parametrize("named", ["127.1", "2130706433", "0x7f000001", "127.0.0.1", "localhost", "BOX"])
def test_the_address_that_is_listened_at_decides_and_not_how_it_was_spelled(named):
    address = "127.0.0.1"
    if named != "BOX":  # as a machine may be called, and be found at 127.0.0.1
        with serve.listen(named, None) as listening:
            assert listening.getsockname()[0] == address
    assert ask({"host": "evil.example:7860"}, host=address, named=named)[0]["status"] == 403
    own = {"host": f"{named.lower()}:7860", "origin": f"http://{named.lower()}:7860"}
    for headers in (OWN, own):
        assert ask(headers, host=address, named=named, method="POST")[0]["status"] == 200


def test_every_address_that_is_listened_at_is_open_to_other_names():
    for named in ("0", "0.0.0.0"):
        with serve.listen(named, None) as listening:
            address = listening.getsockname()[0]
        assert ask({"host": "box.lan:7860"}, host=address, named=named)[0]["status"] == 200
