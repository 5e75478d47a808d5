"""``dpledger datasets``: datasets and what their budgets have left."""

from typing import Annotated

import typer

from dpledger.cli.console import ApiKey, AsJson, Url, connect, make_app, show, show_list

app = make_app("Datasets and their budgets.")

DatasetId = Annotated[str, typer.Argument(help="ds_…")]


@app.command()
def create(
    name: str,
    *,
    epsilon: Annotated[str, typer.Option(help="The cap, a decimal number.")],
    delta: Annotated[str, typer.Option(help="The δ of the cap.")],
    privacy_unit: Annotated[str, typer.Option(help="Who is protected.")] = "record",
    neighboring: str = "add_or_remove_one",
    source: Annotated[str | None, typer.Option(help="digits, mnist5k or a URI.")] = None,
    record_count: Annotated[int | None, typer.Option(min=1)] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Register a dataset and open its budget."""
    optional = {"source": source, "record_count": record_count}
    with connect(url, api_key) as client:
        answer = client.create_dataset(
            name,
            privacy_unit=privacy_unit,
            budget={"epsilon": epsilon, "delta": delta, "neighboring": neighboring},
            **{key: value for key, value in optional.items() if value is not None},
        )
    show(answer, as_json=as_json)


@app.command("ls")
def list_datasets(*, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List all datasets."""
    with connect(url, api_key) as client:
        columns = ("id", "name", "privacy_unit", "record_count", "created_at")
        show_list(client.datasets(), columns=columns, as_json=as_json)


@app.command("show")
def show_dataset(
    dataset_id: DatasetId, *, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Show one dataset."""
    with connect(url, api_key) as client:
        show(client.dataset(dataset_id), as_json=as_json)


@app.command()
def budget(
    dataset_id: DatasetId, *, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Show limit, spent and reserved."""
    with connect(url, api_key) as client:
        show(client.budget(dataset_id), as_json=as_json)
