"""/v1/runs: log a run that trains elsewhere, and settle what it shows."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import object_session

from service.api.deps import Caller, holds
from service.api.lists import After, answer_list
from service.api.media_types import NDJSON, PARQUET, Accept
from service.api.noise_logs import answer_noise_log, answer_sealed_log
from service.api.step_lines import parse_steps, read_lines
from service.api.strict import StrictRoute
from service.core import replay
from service.core.errors import Unavailable
from service.core.events import Event, from_json
from service.db import tables
from service.operations import run_logs, runs
from service.operations.evidence import AUDIT_SCOPE
from service.operations.owned import get_owned, owned
from service.operations.vault import Vault
from service.schemas.jobs import HeldBudget, Progress
from service.schemas.lists import Limit, ListOf
from service.schemas.mechanism import from_core
from service.schemas.runs import Run, RunComplete, RunCreate, StepsAccepted

router = APIRouter(prefix="/v1/runs", tags=["Runs"], route_class=StrictRoute)
WRITE = holds("runs:write")
READ = holds("jobs:read")
AUDIT = holds(AUDIT_SCOPE)

_TRIES: Final = 25  # uploads that meet give way to each other one after the other
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "Step records, one JSON object a line, at most 10,000.",
        "content": {NDJSON: {"schema": {"type": "string"}}},
    }
}

T = TypeVar("T")


@router.post("", status_code=201, response_model=Run)
def create_run(body: RunCreate, caller: Caller = WRITE) -> Response:
    """Begin to log a run that is charged to an open reservation on the dataset."""
    event = body.mechanism.to_core(pointer="/mechanism")
    return caller.write(
        lambda session: runs.create_run(
            session,
            caller.principal,
            dataset_id=body.dataset_id,
            reservation_id=body.reservation_id,
            mechanism=event,
            software=body.software,
        ),
        shape=_shape,
        dry_run=body.validate_only,
    )


@router.get("", response_model=ListOf[Run])
def list_runs(limit: Limit = 20, after: After = None, caller: Caller = READ) -> Response:
    """The tenant's runs, newest first."""
    return answer_list(
        caller, owned(caller.principal, tables.Run), tables.Run, _shape, limit, after
    )


@router.get("/{run_id}", response_model=Run)
def get_run(run_id: str, caller: Caller = READ) -> Response:
    """One run."""
    return caller.show(
        lambda session: get_owned(session, caller.principal, tables.Run, run_id), shape=_shape
    )


@router.post("/{run_id}/steps", openapi_extra=_BODY)
async def log_steps(run_id: str, request: Request, caller: Caller = WRITE) -> StepsAccepted:
    """Append consecutive step records; sent again, they are counted as duplicates."""
    body = await read_lines(request)
    return await anyio.to_thread.run_sync(_log, caller, run_id, body)


@router.post("/{run_id}/complete", response_model=Run)
def complete_run(run_id: str, body: RunComplete, caller: Caller = WRITE) -> Response:
    """Seal the log, and settle the reservation at the larger of what was leased and logged."""

    def once() -> Response:
        ending = caller.read(
            lambda session: runs.prepare_end(
                session, caller.principal, run_id=run_id, vault=_vault(caller)
            )
        )
        prices = {} if ending is None else runs.prices_of(ending.executed, ending.terms)
        return caller.write(
            lambda session: runs.complete(
                session,
                caller.principal,
                run_id=run_id,
                ending=ending,
                prices=prices,
                steps=body.steps,
            ),
            shape=_shape,
            status=200,
        )

    return _again_if_outrun(once)


@router.get(
    "/{run_id}/noise-log",
    response_class=Response,
    responses={200: {"content": {NDJSON: {}, PARQUET: {}}}},
)
def run_noise_log(run_id: str, accept: Accept = "*/*", caller: Caller = READ) -> Response:
    """The releasable noise log, a record for each step; what is sealed never comes here."""
    digests, tail = _again_if_outrun(
        lambda: caller.read(
            lambda session: run_logs.released_of(session, caller.principal, run_id=run_id)
        )
    )
    return answer_noise_log(caller, digests, tail=tail, accept=accept)


@router.get(
    "/{run_id}/sealed-log",
    response_class=Response,
    responses={200: {"content": {NDJSON: {}}}},
)
def run_sealed_log(run_id: str, caller: Caller = AUDIT) -> Response:
    """The sealed stream, for auditors; each reading is on record for ever."""
    return answer_sealed_log(caller, subject=tables.Run, subject_id=run_id)


def _log(caller: Caller, run_id: str, body: bytes) -> StepsAccepted:
    uploads = parse_steps(body)

    def once() -> run_logs.Growth:
        growth = caller.read(
            lambda session: run_logs.prepare(
                session, caller.principal, run_id=run_id, uploads=uploads, vault=_vault(caller)
            )
        )
        if growth.accepted:
            # The steps' own numbers make this idempotent: no key is needed or looked at.
            with caller.parts.database.write() as session:
                run_logs.record(session, caller.principal, growth)
        return growth

    try:
        growth = _again_if_outrun(once)
    except OSError as error:  # a full disk: nothing of this upload was acknowledged
        raise Unavailable("The store did not take the records; send them again.") from error
    return StepsAccepted(
        run_id=run_id,
        accepted=growth.accepted,
        duplicates=growth.duplicates,
        next_step=growth.next_step,
        head=growth.head,
    )


def _again_if_outrun(once: Callable[[], T]) -> T:
    for _ in range(_TRIES - 1):
        try:
            return once()
        except run_logs.Outrun:
            continue
    return once()


def _vault(caller: Caller) -> Vault:
    return Vault(caller.parts.objects, caller.parts.sealer)


def _shape(row: tables.Run) -> Run:
    session = object_session(row)
    assert session is not None, "shaped inside its session"
    held = session.get_one(tables.Reservation, row.reservation_id)
    mechanism = from_json(row.mechanism)
    ended = row.ended_at is not None and held.executed is not None
    return Run(
        id=row.id,
        dataset_id=row.dataset_id,
        state=row.state,  # pyright: ignore[reportArgumentType]
        reservation=HeldBudget(
            id=held.id,
            state=held.state,
            total_steps=held.total_steps,
            leased_steps=held.leased_steps,
        ),
        mechanism=from_core(mechanism),
        departs_from_reservation=_departure(mechanism, from_json(held.mechanism)),
        progress=Progress(
            step=row.next_step,
            total_steps=held.total_steps,
            fraction=min(1.0, row.next_step / held.total_steps),
            eta_s=None,
        ),
        overrun_steps=max(0, row.next_step - held.leased_steps),
        head=row.head,
        executed=from_core(from_json(held.executed)) if ended and held.executed else None,
        software=row.software,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


def _departure(declared: Event, reserved: Event) -> str | None:
    try:
        found = replay.departure(declared, planned=reserved)
    except ValueError:  # the reservation is not for steps
        return "The reservation is for another kind of mechanism."
    return None if found is None else found.detail
