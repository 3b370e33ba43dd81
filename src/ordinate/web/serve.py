"""Serving the page: on this machine alone unless told otherwise, and sealed against anything from outside."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..extras import how_to_install
from .page import CSS, QUIET, build

LOOPBACK = "127.0.0.1"

#: What a browser may load for the page: its own files. Gradio and Plotly evaluate code they bring along.
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

# Plotly breaks its promise, without a reason, when an animation is stopped; nobody need be told.
_STOPPED = """<script>
addEventListener('unhandledrejection', event => { if (event.reason === undefined) event.preventDefault(); });
</script>"""

MAX_UPLOAD = 32 * 2**20


class Sealed:
    """Tell the browser, with every answer, to load nothing from anywhere else."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [
                    (b"content-security-policy", POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                ]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        await self.app(scope, receive, sealed if scope["type"] == "http" else send)


def serve(
    *,
    host: str = LOOPBACK,
    port: int | None = None,
    language: str = "en",
    runs: Path | None = None,
    block: bool = True,
    on_ready: Callable[[str], None] | None = None,
) -> Any:
    """Build the page, listen, and say where.

    Args:
        port: Default: a free one.
        runs: A folder with comparisons that can be opened on the page.
        block: Return only when the server is stopped.
        on_ready: Called with the address once the page answers.
    """
    missing = [name for name in ("gradio", "plotly") if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"{' and '.join(missing)} must be installed for the page: {how_to_install('web')}"
        )
    os.environ.update(QUIET)
    import torch
    from starlette.middleware import Middleware

    torch.set_num_threads(1)  # on tensors this small, threads wait for each other more than they help
    page = build(language, runs)
    page.queue(default_concurrency_limit=4, max_size=64)
    _, address, _ = page.launch(
        server_name=host, server_port=port or free_port(host), share=False, inbrowser=False, quiet=True,
        prevent_thread_lock=True, ssr_mode=False, pwa=False, mcp_server=False, enable_monitoring=False,
        show_error=False, max_file_size=MAX_UPLOAD, theme=_theme(), css=CSS, head=_preload() + _STOPPED,
        footer_links=[], app_kwargs={"middleware": [Middleware(Sealed)]},
    )  # fmt: skip
    if on_ready is not None:
        on_ready(address)
    if block:
        page.block_thread()
    return page


def free_port(host: str) -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _preload() -> str:
    """Let the browser fetch the largest script at once; Gradio asks for it last, when the first figure is due."""
    import gradio

    assets = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
    found = sorted(assets.glob("PlotlyPlot-*.js"))
    return "".join(f'<link rel="modulepreload" href="./assets/{path.name}">' for path in found)


def _theme() -> Any:
    """Gradio's plain theme in the fonts of the machine; its own would be fetched."""
    import gradio as gr

    fonts = ["system-ui", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif"]
    return gr.themes.Default(font=fonts, font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"])
