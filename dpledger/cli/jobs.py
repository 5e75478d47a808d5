"""``dpledger jobs`` and ``dpledger check``: training jobs and claims about them."""

from typing import Annotated, Any, Final

import typer

from dpledger.cli.console import (
    CANCELLED,
    FAILED,
    NOT_DECIDED,
    REFUTED,
    ApiKey,
    AsJson,
    Url,
    connect,
    make_app,
    show,
    show_list,
)
from dpledger.client import Client
from dpledger.transport import Json

app = make_app("Training jobs.")

JobId = Annotated[str, typer.Argument(help="job_…")]
_STATE_EXITS: Final = {"succeeded": 0, "failed": FAILED, "cancelled": CANCELLED}
_VERDICT_EXITS: Final = {"supported": 0, "refuted": REFUTED}


@app.command()
def submit(
    dataset_id: Annotated[str, typer.Argument(help="ds_…")],
    *,
    model: str = "mlp",
    target_epsilon: Annotated[float, typer.Option(min=0, help="More than 0.")],
    delta: Annotated[float, typer.Option(min=0, max=1)] = 1e-5,
    max_grad_norm: Annotated[
        float | None,
        typer.Option(min=0, help="More than 0. Default: the preset's of dataset and model."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Stay until the job has ended.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Queue a training job; with --wait the exit status is the job's."""
    privacy = {"target_epsilon": target_epsilon, "delta": delta}
    if max_grad_norm is not None:  # without it the service takes the preset's
        privacy["max_grad_norm"] = max_grad_norm
    with connect(url, api_key) as client:
        job = client.submit(dataset_id, training={"model": model}, privacy=privacy)
        if wait:
            job = client.wait(job["id"])
    show(job, as_json=as_json)
    if wait:
        raise typer.Exit(_STATE_EXITS[job["state"]])


@app.command("ls")
def list_jobs(*, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List all jobs."""
    with connect(url, api_key) as client:
        columns = ("id", "state", "dataset_id", "created_at")
        show_list(client.jobs(), columns=columns, as_json=as_json)


@app.command("show")
def show_job(
    job_id: JobId, *, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Show one job."""
    with connect(url, api_key) as client:
        show(client.job(job_id), as_json=as_json)


@app.command()
def logs(job_id: JobId, *, url: Url = None, api_key: ApiKey = None) -> None:
    """Print what the trainer wrote."""
    with connect(url, api_key) as client:
        typer.echo(client.logs(job_id), nl=False)


@app.command()
def cancel(
    job_id: JobId, *, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Ask a job to stop; what it has spent stays spent."""
    with connect(url, api_key) as client:
        show(client.cancel(job_id), as_json=as_json)


@app.command()
def wait(
    job_id: JobId,
    *,
    timeout_s: Annotated[float | None, typer.Option(min=0, help="The longest wait.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Wait for the end of a job; the exit status is the job's."""
    with connect(url, api_key) as client:
        job = client.wait(job_id, timeout_s=timeout_s)
    show(job, as_json=as_json)
    raise typer.Exit(_STATE_EXITS.get(job["state"], NOT_DECIDED))


def check(
    job_id: JobId,
    *,
    epsilon: Annotated[float, typer.Option(min=0, help="The ε that is claimed.")],
    delta: Annotated[float, typer.Option(min=0, max=1)] = 1e-5,
    neighboring: str = "add_or_remove_one",
    privacy_unit: Annotated[
        str | None, typer.Option(help="Default: the one of the job's dataset.")
    ] = None,
    scope: Annotated[str, typer.Option(help="single_job, sweep or dataset_lifetime.")] = (
        "single_job"
    ),
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Test a privacy claim about a job: 0 supported, 3 refuted, 2 neither."""
    with connect(url, api_key) as client:
        claim: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "neighboring": neighboring,
            "privacy_unit": privacy_unit or _unit_of(client, client.job(job_id)),
            "scope": scope,
        }
        answer = client.check(claim=claim, subject={"type": "training_job", "id": job_id})
    show(answer, as_json=as_json)
    raise typer.Exit(_VERDICT_EXITS.get(answer["verdict"], NOT_DECIDED))


def _unit_of(client: Client, job: Json) -> str:
    return str(client.dataset(job["dataset_id"])["privacy_unit"])
