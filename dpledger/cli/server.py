"""``up``, ``demo`` and ``version``. The service is imported only by the verb that runs it."""

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from dpledger.cli.console import ApiKey, AsJson, Url, connect, output, print_json
from dpledger.demo import run_demo
from dpledger.embedded_service import Address, embedded_service
from dpledger.errors import ClientError
from service import __version__

_SERVER_PARTS: Final = ("alembic", "celery", "fastapi", "sqlalchemy", "structlog", "uvicorn")
_WORKER_PARTS: Final = ("opacus", "torch")


def up(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    data_dir: Annotated[Path, typer.Option(help="All state is in here.")] = Path("dpledger-data"),
) -> None:
    """Run the whole service on this machine; Ctrl-C stops it."""
    _need_server()
    from service import embedded  # noqa: PLC0415 - the bare install has no server

    code = embedded.up(
        data_dir,
        host=host,
        port=port,
        environ=os.environ,
        announce=lambda text: print(text, flush=True),  # noqa: T201 - a program may read it
    )
    raise typer.Exit(code)


def demo(
    *,
    url: Url = None,
    api_key: ApiKey = None,
    embedded: Annotated[bool, typer.Option(help="Start a service for the demo.")] = False,
) -> None:
    """Train a model under a budget and test two claims about it."""
    with contextlib.ExitStack() as stack:
        if embedded:
            _need_server()
            output().print("starting gateway, worker, sweeper and broker")
            address: Address = stack.enter_context(embedded_service())
            url, api_key = address.url, address.api_key
        with connect(url, api_key) as client:
            output().print(f"service at {client.url}")
            fine = run_demo(client, console=output())
            if not fine:
                raise ClientError("this is not what the demo should show")
    output().print("all is as expected")


def version(*, as_json: AsJson = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        output().print(__version__)


def _need_server() -> None:
    """Refuse before anything starts where this is the bare install."""
    if any(importlib.util.find_spec(name) is None for name in (*_SERVER_PARTS, *_WORKER_PARTS)):
        raise ClientError(
            "the server parts are not installed: pip install 'dpledger[service,worker]'"
        )
