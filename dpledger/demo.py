"""``dpledger demo``: one training job from reservation to judged claim, as a client sees it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dpledger.client import Client
from dpledger.errors import ApiError
from dpledger.transport import Event, Json

TARGET_EPSILON: Final = 3.0
_DELTA: Final = 1e-5
_MAX_GRAD_NORM: Final = 0.5  # of the preset for the digits
_NEIGHBORING: Final = "add_or_remove_one"
_PRIVACY_UNIT: Final = "record"
_BUDGET: Final = {"epsilon": "8.0", "delta": "1e-5", "neighboring": _NEIGHBORING}
_LINES: Final = 10  # progress lines of a whole run where no bar can be drawn


def run_demo(client: Client, *, console: Console) -> bool:
    """Train on the built-in digits under a budget, then test a true and a false claim.

    Args:
        client: Connected to the service, with a key that may write datasets and jobs.
        console: Where the story is told.

    Returns:
        True if the job kept to its target, the true claim was supported and the false
        one refuted.
    """
    dataset_id = _dataset(client, console=console)
    before = client.budget(dataset_id)
    job = client.submit(
        dataset_id,
        training={"model": "mlp"},
        privacy={
            "target_epsilon": TARGET_EPSILON,
            "delta": _DELTA,
            "max_grad_norm": _MAX_GRAD_NORM,
        },
    )
    console.print(f"job {job['id']}: {job['state']}, its worst case is reserved")
    if forecast := job.get("forecast"):
        noise, steps = forecast["noise_multiplier"], forecast["steps"]
        console.print(f"  {steps} steps with noise multiplier {noise} keep ε ≤ {TARGET_EPSILON}")
    _follow(client, job_id=job["id"], console=console)
    job = client.wait(job["id"])
    if job["state"] != "succeeded":
        console.print(f"[red]the job {job['state']}[/red]: {job.get('error')}")
        return False
    epsilon = job["result"]["epsilon"]
    _tell_result(job, console=console)
    _tell_ledger(before, client.budget(dataset_id), console=console)
    return epsilon["upper"] <= TARGET_EPSILON and _check_claims(
        client, job_id=job["id"], upper=epsilon["upper"], console=console
    )


def _dataset(client: Client, *, console: Console) -> str:
    name = f"digits-{secrets.token_hex(4)}"
    try:
        dataset = client.create_dataset(
            name, privacy_unit=_PRIVACY_UNIT, budget=_BUDGET, source="digits"
        )
    except ApiError as refusal:
        if refusal.code != "DATASET_EXISTS":
            raise
        known = str(refusal.fields["dataset_id"])
        console.print(f"dataset {known} holds these records already: its budget is used")
        return known
    console.print(f"dataset {dataset['id']}: budget ε = {_BUDGET['epsilon']} at δ = {_DELTA}")
    return str(dataset["id"])


def _follow(client: Client, *, job_id: str, console: Console) -> None:
    steps = _steps(client.events(job_id))
    if console.is_terminal:
        _draw_bar(steps, console=console)
        return
    told = -1
    for step, total in steps:
        part = step * _LINES // max(total, 1)
        if part > told:
            told = part
            console.print(f"  step {step} of {total}")


def _steps(events: Iterator[Event]) -> Iterator[tuple[int, int]]:
    for event in events:
        progress: Any = event.data.get("progress", event.data)
        if isinstance(progress, dict) and "step" in progress and "total_steps" in progress:
            yield int(progress["step"]), int(progress["total_steps"])


def _draw_bar(steps: Iterator[tuple[int, int]], *, console: Console) -> None:
    with _bar(console) as bar:
        task = bar.add_task("training", total=None)
        for step, total in steps:
            bar.update(task, completed=step, total=total)


@contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        yield bar


def _tell_result(job: Json, *, console: Console) -> None:
    metrics, epsilon = job["result"]["metrics"], job["result"]["epsilon"]
    console.print(f"accuracy on the public test part: {metrics['test_accuracy']:.4f}")
    console.print(
        f"ε in [{epsilon['lower']:.6f}, {epsilon['upper']:.6f}] at δ = {_DELTA} "
        f"({_NEIGHBORING}; target {TARGET_EPSILON})"
    )


def _tell_ledger(before: Json, after: Json, *, console: Console) -> None:
    for name in ("spent", "reserved"):
        console.print(f"ledger, {name}: {_amount(before[name])} -> {_amount(after[name])}")


def _amount(value: Any) -> str:
    if isinstance(value, dict):
        return f"ε = {_amount(value.get('epsilon'))}"
    return str(value)


def _check_claims(client: Client, *, job_id: str, upper: float, console: Console) -> bool:
    true = Decimal(upper).quantize(Decimal("0.001"), rounding=ROUND_CEILING)
    fine = True
    for epsilon, expected in ((true, "supported"), (true / 2, "refuted")):
        claim = {
            "epsilon": float(epsilon),
            "delta": _DELTA,
            "neighboring": _NEIGHBORING,
            "privacy_unit": _PRIVACY_UNIT,
            "scope": "single_job",
        }
        answer = client.check(claim=claim, subject={"type": "training_job", "id": job_id})
        console.print(f"claim ε = {epsilon}: {answer['verdict']} (expected: {expected})")
        fine = fine and answer["verdict"] == expected
    return fine
