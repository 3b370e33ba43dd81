"""Serving the page, on this machine alone unless another address is named."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from ..checks import refused
from ..extras import how_to_install
from .security import OwnWebsiteOnly

LOOPBACK = "127.0.0.1"

# Plotly rejects a promise without a reason when an animation is stopped, which is no error.
_STOPPED = """<script>
addEventListener('unhandledrejection', event => { if (event.reason === undefined) event.preventDefault(); });
</script>"""

MAX_UPLOAD = 32 * 2**20

#: Visitors whose state the server holds, about 0.2 MiB each; the state unused for longest is dropped first.
MAX_SESSIONS = 100


def serve(
    *,
    host: str = LOOPBACK,
    port: int | None = None,
    language: str = "en",
    runs: Path | None = None,
    framed_by: str | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Build the page and listen. Returns when the server is stopped.

    Args:
        port: Default: a free one.
        runs: A folder with comparisons that can be opened on the page.
        framed_by: The one website that may show the page in a frame.
        on_ready: Called with the address once the page answers.
    """
    missing = [name for name in ("gradio", "plotly") if find_spec(name) is None]
    if missing:
        raise refused(
            " and ".join(missing), "must be installed for the page: {command}", command=how_to_install("web"),
            error=ModuleNotFoundError,
        )  # fmt: skip
    import torch
    import uvicorn
    from fastapi import FastAPI
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware

    from .gradio_quiet import gr
    from .page import CSS, build

    torch.set_num_threads(1)  # on tensors this small, threads wait for each other more than they help
    with listen(host, port) as listening:
        page = build(language, runs)
        page.queue(default_concurrency_limit=4, max_size=64)
        page.state_session_capacity = MAX_SESSIONS
        # Our CORS rule allows no website, and keeps Gradio from adding one that echoes any.
        closed = [
            Middleware(
                OwnWebsiteOnly, address=listening.getsockname()[0], host=host, framed_by=framed_by
            ),
            Middleware(CORSMiddleware),
        ]
        app = gr.mount_gradio_app(
            FastAPI(middleware=closed, openapi_url=None), page, path="/", server_name=host,
            server_port=listening.getsockname()[1], ssr_mode=False, pwa=False, mcp_server=False,
            enable_monitoring=False, show_error=False, max_file_size=MAX_UPLOAD, theme=_theme(), css=CSS,
            head=_preload() + _STOPPED, footer_links=[], run_history=False,
        )  # fmt: skip
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            if on_ready is not None:  # a browser that comes early waits in the socket's queue
                on_ready(_address(host, listening))
            thread.join()
        finally:
            server.should_exit = True
            thread.join(timeout=5)


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens, at a free port if none is named; OSError where that cannot be.

    Raises:
        ValueError: ``host`` names no machine. To a socket, no name at all is every address.
    """
    name, is_name = host.strip("[]"), False
    with contextlib.suppress(UnicodeError):  # as the system will ask for it
        is_name = name.encode("idna") != b""
    if not is_name:
        raise refused("host", "must name an address of this machine", f"{host!r:.100}")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    return socket.create_server((name, port or 0), family=family)


def _address(host: str, listening: socket.socket) -> str:
    bound, port = listening.getsockname()[:2]
    name = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{'localhost' if bound == '0.0.0.0' else name}:{port}/"


def _preload() -> str:
    """A tag by which the browser fetches the largest script at once; Gradio loads it last, for the first figure."""
    from .gradio_quiet import gr

    assets = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
    found = sorted(assets.glob("PlotlyPlot-*.js"))
    return "".join(f'<link rel="modulepreload" href="./assets/{path.name}">' for path in found)


def _theme() -> Any:
    """Gradio's plain theme in the fonts of the machine; its own would be fetched."""
    from .gradio_quiet import gr

    fonts = ["system-ui", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif"]
    return gr.themes.Default(font=fonts, font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"])
