"""Command `headrace serve`: a trained model for OpenAI's clients and for a browser."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.arguments import AsJson, Model, newest_run
from headrace.jobs.serve import TOKEN_VARIABLE
from headrace.jobs.serve import serve as serve_model
from headrace.serve.server import FIRST_PORT, LOOPBACK, ModelServer


def serve(
    run: Model = "",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help=f"The port to use. Default: the first free one from {FIRST_PORT}."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on; 0.0.0.0 lets other machines in, with a token that is printed or set by"
            f" ${TOKEN_VARIABLE}."
        ),
    ] = LOOPBACK,
    as_json: AsJson = False,
) -> None:
    """Serve a trained model: OpenAI's /v1/completions with streaming, and a page to try it. Ctrl-C ends it."""

    def show(server: ModelServer) -> None:
        url, name = server.url, server.engine.name
        page = f"{url}#{quote(server.token)}" if server.token else url
        display.out.print(escape(f"serving {name} at {page} (Ctrl-C ends this)"), soft_wrap=True, highlight=False)
        client = f'base_url="{url}v1", api_key="{server.token or "none"}", model="{name}"'
        display.out.print(escape(f"  in OpenAI's client: {client}"), soft_wrap=True, highlight=False)
        if as_json:
            typer.echo(json.dumps({"url": url, "model": name, "token": server.token or None}))

    serve_model(run or newest_run(), host, port, show)
