"""What all verbs share: connection options, output for people and for programs, exit codes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from dpledger.client import Client

FAILED: Final = 1
NOT_DECIDED: Final = 2
REFUTED: Final = 3
CANCELLED: Final = 4
_WIDEST: Final = 100_000

Url = Annotated[
    str | None, typer.Option(envvar="DPLEDGER_URL", help="The service.", show_default=False)
]
ApiKey = Annotated[
    str | None, typer.Option(envvar="DPLEDGER_API_KEY", help="dpl_…", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the service's own JSON.")]


def make_app(text: str) -> typer.Typer:
    """A group of verbs."""
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def connect(url: str | None, api_key: str | None) -> Client:
    """The service that the options or the environment name."""
    return Client(url, api_key)


def errors() -> Console:
    """Where warnings and errors go."""
    return Console(stderr=True, soft_wrap=True)


def output() -> Console:
    """Where answers for people go; lines are not broken, so that they can be searched."""
    return Console(soft_wrap=True, highlight=False)


def show(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object, its members one a line for people."""
    if as_json:
        print_json(answer)
        return
    for name, value in answer.items():
        if value is not None and name != "object":
            output().print(f"{name}: {cell(value)}", markup=False)


def show_list(items: Iterable[Mapping[str, Any]], *, columns: Sequence[str], as_json: bool) -> None:
    """Print a list: a table for people, one JSON object a line for programs."""
    if as_json:
        for item in items:
            print_json(item)
        return
    table = Table(*columns, box=None, pad_edge=False)
    for item in items:
        table.add_row(*(cell(item.get(column)) for column in columns))
    console = output()
    natural = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    console.width = max(natural, console.width)  # ids are for copying: never cut
    console.print(table)


def print_json(answer: Mapping[str, Any]) -> None:
    """Print one line of JSON."""
    typer.echo(json.dumps(answer, ensure_ascii=False))


def cell(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, dict) and set(value) >= {"lower", "upper"}:
        upper = "unbounded" if value["upper"] is None else value["upper"]
        return f"[{value['lower']}, {upper}]"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
