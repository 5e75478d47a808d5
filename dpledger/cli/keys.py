"""``dpledger keys``: API keys."""

from typing import Annotated

import typer

from dpledger.cli.console import ApiKey, AsJson, Url, connect, make_app, show, show_list

app = make_app("API keys.")


@app.command()
def create(
    name: str,
    *,
    scope: Annotated[list[str], typer.Option(help="May be given several times.")],
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Make a key; its secret is shown here and never again."""
    with connect(url, api_key) as client:
        show(client.create_api_key(name, scopes=scope), as_json=as_json)


@app.command("ls")
def list_keys(*, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List all keys, without their secrets."""
    with connect(url, api_key) as client:
        columns = ("id", "name", "scopes", "expires_at")
        show_list(client.api_keys(), columns=columns, as_json=as_json)
