"""/v1/training-jobs: submit, watch, cancel, and fetch what a job leaves."""

from typing import Annotated, Any, Final

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse

from service.api import job_shapes, job_streams
from service.api.deps import AnyKey, Caller, holds
from service.api.lists import After, answer_list
from service.api.media_types import NDJSON, PARQUET, Accept, chosen
from service.api.noise_logs import answer_noise_log, answer_sealed_log
from service.api.strict import StrictRoute
from service.core.jobs import recipes
from service.db import tables
from service.operations import job_plans, jobs
from service.operations.evidence import AUDIT_SCOPE
from service.operations.noise_chunks import chunks_of
from service.operations.owned import get_owned, owned
from service.schemas import jobs as wire
from service.schemas.lists import Limit, ListOf

router = APIRouter(tags=["Training jobs"], route_class=StrictRoute)
READ = holds("jobs:read")
WRITE = holds("jobs:write")
AUDIT = holds(AUDIT_SCOPE)

_EVENTS: Final = "text/event-stream"
_LAST_SEQUENCE: Final = 2**53  # what every client can count to, and a database can hold
_JOB: Final = "/v1/training-jobs/{job_id}"


@router.post("/v1/training-jobs", status_code=201, response_model=wire.TrainingJob)
def submit_training_job(body: wire.TrainingJobCreate, caller: Caller = WRITE) -> Response:
    """Reserve the whole run's budget and queue it; nothing is trained before that holds."""
    plan = job_plans.plan(
        body, dataset=_facts(caller, body.dataset_id), calculator=caller.parts.calculator
    )
    return caller.write(
        lambda session: jobs.submit(
            session,
            caller.principal,
            dataset_id=body.dataset_id,
            plan=plan,
            ring=caller.parts.queue.ring,
        ),
        shape=job_shapes.job,
        dry_run=body.validate_only,
    )


@router.get("/v1/training-jobs", response_model=ListOf[wire.TrainingJob])
def list_training_jobs(limit: Limit = 20, after: After = None, caller: Caller = READ) -> Response:
    """The tenant's jobs, newest first."""
    query = owned(caller.principal, tables.Job)
    return answer_list(caller, query, tables.Job, job_shapes.job, limit, after)


@router.get(_JOB, response_model=wire.TrainingJob)
def get_training_job(job_id: str, caller: Caller = READ) -> Response:
    """One job."""
    return _show(caller, job_id)


@router.get(f"{_JOB}/wait", response_model=wire.TrainingJob)
async def wait_for_training_job(
    job_id: str,
    timeout_s: Annotated[float, Query(ge=0, le=60)] = 25,
    caller: Caller = READ,
) -> Response:
    """The job once it has ended, or as it is when the time is over."""
    await job_streams.until_ended(caller, job_id=job_id, timeout_s=timeout_s)
    return await anyio.to_thread.run_sync(_show, caller, job_id)


@router.post(f"{_JOB}/cancel", status_code=202, response_model=wire.TrainingJob)
def cancel_training_job(job_id: str, caller: Caller = WRITE) -> Response:
    """Ask for the end of a job; it is ``cancelled`` when its trainer is really gone."""
    return caller.write(
        lambda session: jobs.cancel(session, caller.principal, job_id=job_id),
        shape=job_shapes.job,
        status=202,
        key_required=False,
    )


@router.get(
    f"{_JOB}/events",
    response_model=wire.JobEvents,
    responses={200: {"content": {_EVENTS: {"schema": {"type": "string"}}}}},
)
async def training_job_events(
    job_id: str,
    accept: Accept = "*/*",
    last_event_id: Annotated[int | None, Header(ge=0, le=_LAST_SEQUENCE)] = None,
    after: Annotated[int, Query(ge=0, le=_LAST_SEQUENCE, description="As Last-Event-ID.")] = 0,
    caller: Caller = READ,
) -> Response:
    """What happens to a job, as it happens; or what has happened, with Accept: application/json."""
    start = after if last_event_id is None else last_event_id
    if chosen(accept, [_EVENTS, "application/json"]) == "application/json":
        return await anyio.to_thread.run_sync(_event_list, caller, job_id, start)
    await anyio.to_thread.run_sync(_find, caller, job_id)  # 404 while there is still a status
    return StreamingResponse(
        job_streams.server_sent_events(caller, job_id=job_id, after=start),
        media_type=_EVENTS,
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


@router.get(
    f"{_JOB}/noise-log",
    response_class=Response,
    responses={200: {"content": {NDJSON: {}, PARQUET: {}}}},
)
def training_job_noise_log(job_id: str, accept: Accept = "*/*", caller: Caller = READ) -> Response:
    """The releasable noise log, a record for each step; what is sealed never comes here."""
    return answer_noise_log(caller, _digests(caller, job_id), accept=accept)


@router.get(
    f"{_JOB}/sealed-log",
    response_class=Response,
    responses={200: {"content": {NDJSON: {}}}},
)
def training_job_sealed_log(job_id: str, caller: Caller = AUDIT) -> Response:
    """The sealed stream, for auditors; each reading is on record for ever."""
    return answer_sealed_log(caller, subject=tables.Job, subject_id=job_id)


@router.get(f"{_JOB}/artifacts", response_model=wire.Artifacts)
def list_training_job_artifacts(job_id: str, caller: Caller = READ) -> wire.Artifacts:
    """What the job left; 409 until its charge is final."""
    return caller.read(
        lambda session: wire.Artifacts(
            data=[
                job_shapes.artifact(row)
                for row in jobs.artifacts_of(session, caller.principal, job_id=job_id)
            ]
        )
    )


@router.get(f"{_JOB}/artifacts/{{name}}", response_class=Response)
def get_training_job_artifact(job_id: str, name: str, caller: Caller = READ) -> Response:
    """The bytes of one file; 409 until the job's charge is final."""
    found = caller.read(
        lambda session: job_shapes.artifact(
            jobs.artifact_of(session, caller.principal, job_id=job_id, name=name)
        )
    )
    headers = {"Content-Length": str(found.size_bytes), "ETag": f'"{found.sha256}"'}
    content = caller.parts.objects.stream(found.sha256)
    return StreamingResponse(content, media_type=found.media_type, headers=headers)


@router.get(
    f"{_JOB}/logs", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
)
def training_job_logs(job_id: str, caller: Caller = READ) -> Response:
    """What the trainer wrote about itself; while it runs, what of it is on this machine."""
    digest, token = caller.read(
        lambda session: jobs.log_of(session, caller.principal, job_id=job_id)
    )
    if digest is not None:
        return StreamingResponse(caller.parts.objects.stream(digest), media_type="text/plain")
    folder = caller.parts.settings.job_folder(job_id, token=token)
    try:
        return Response((folder / jobs.LOG_NAME).read_bytes(), media_type="text/plain")
    except FileNotFoundError:  # not begun, or on another machine
        return Response("", media_type="text/plain")


@router.get("/v1/training-recipes")
def training_recipes(caller: AnyKey) -> dict[str, Any]:  # noqa: ARG001 - any key will do
    """Datasets, models, their options and good settings to start from."""
    return {"object": "training_recipes", **recipes()}


def _facts(caller: Caller, dataset_id: str) -> job_plans.Facts:
    return caller.read(
        lambda session: job_plans.facts_of(
            get_owned(session, caller.principal, tables.Dataset, dataset_id)
        )
    )


def _show(caller: Caller, job_id: str) -> Response:
    return caller.show(
        lambda session: get_owned(session, caller.principal, tables.Job, job_id),
        shape=job_shapes.job,
    )


def _find(caller: Caller, job_id: str) -> str:
    return caller.read(
        lambda session: get_owned(session, caller.principal, tables.Job, job_id).state
    )


def _event_list(caller: Caller, job_id: str, after: int) -> Response:
    limit = 1000
    events = caller.read(
        lambda session: [
            job_shapes.event(row)
            for row in jobs.events_after(
                session, caller.principal, job_id=job_id, after=after, limit=limit + 1
            )[1]
        ]
    )
    page = wire.JobEvents(
        data=events[:limit],
        has_more=len(events) > limit,
        next_cursor=str(events[limit - 1].sequence) if len(events) > limit else None,
    )
    return JSONResponse(page.model_dump(mode="json"))


def _digests(caller: Caller, job_id: str) -> list[str]:
    return caller.read(
        lambda session: [
            chunk.released_object
            for chunk in chunks_of(
                session, get_owned(session, caller.principal, tables.Job, job_id).id
            )
        ]
    )
