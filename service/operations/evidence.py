"""What is known about the subject of a claim, gathered from rows and stored chunks.

Nothing is judged here: facts in, ``Evidence`` out. Sealed measures are read only for a caller
who holds ``audit:read`` and asks for them; the stored check is the record of that reading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service import log_chunks
from service.core import merkle, noise_log, replay
from service.core.bounds import separation
from service.core.chunks import runs_of, seal
from service.core.claims import (
    AccountFacts,
    AccountState,
    Ending,
    Evidence,
    LedgerFacts,
    LogFacts,
    SealedMeasures,
)
from service.core.credentials import Principal
from service.core.datasets import BUILTIN_DATASETS
from service.core.errors import InvalidInput
from service.core.events import (
    MAX_STEPS,
    NOTHING,
    EpochDpSgd,
    Event,
    Neighboring,
    StepwiseDpSgd,
    for_unit,
    from_json,
)
from service.core.interval import Interval
from service.core.jobs import TrainingSpec
from service.db.tables import Account, Dataset, Job, LedgerEntry, NoiseChunk, Reservation, Run
from service.operations import log
from service.operations.noise_chunks import chunks_of
from service.operations.owned import get_owned
from service.operations.run_logs import sealed_parts, tail_of
from service.operations.vault import Vault

T = TypeVar("T", bound=np.generic)

AUDIT_SCOPE: Final = "audit:read"
_MAX_MEASURE: Final = 2**53
_ENDINGS: Final[dict[str, Ending]] = {
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "completed": "completed",
    "abandoned": "unknown",
}


def of_job(
    session: Session, principal: Principal, *, job_id: str, vault: Vault, sealed: bool
) -> Evidence:
    """The evidence about a training job: its log, its ledger entries, its account.

    Args:
        sealed: read the sealed stream as well; needs the scope ``audit:read``.

    Raises:
        NotFound: no such job.
        Forbidden: ``sealed`` without the scope.
    """
    if sealed:
        principal.require(AUDIT_SCOPE)
    job = get_owned(session, principal, Job, job_id)
    dataset = session.get_one(Dataset, job.dataset_id)
    account = dataset.accounts[-1]
    reservation = session.get_one(Reservation, job.reservation_id)
    spec = TrainingSpec.from_json(job.spec)
    chunks = chunks_of(session, job.id)
    found, facts = _read(chunks, vault=vault, sealed=job.finished_at is not None)
    records = dataset.max_records_per_unit
    builtin = BUILTIN_DATASETS.get(spec.dataset_source)
    return Evidence(
        subject="training_job",
        reserved=for_unit(from_json(reservation.mechanism), records=records),
        replayed=for_unit(replay.replay(found), records=records),
        # A unit may hold a single record: what that one loses bounds from below.
        certain=replay.certain_part(found),
        log=_in_the_log(session, chunks, facts, job=job),
        ledger=_ledger(session, reservation, account),
        account=_account(account, dataset),
        ending=_ending(job.state, job.error),
        privacy_unit=dataset.privacy_unit,
        record_count=dataset.record_count,
        record_count_is_public=dataset.record_count_is_public,
        expected_batch_size=spec.expected_batch_size,
        dataset_matches=builtin is not None and builtin.fingerprint == dataset.fingerprint,
        stop_rule="fixed_steps" if job.state == "succeeded" else None,
        reproducible=spec.seed_policy == "reproducible",
        sealed=_measures(session, job.id, found, vault=vault) if sealed else None,
    )


def of_run(
    session: Session, principal: Principal, *, run_id: str, vault: Vault, sealed: bool
) -> Evidence:
    """The evidence about a run that trained elsewhere: as ``of_job``, from what it logged.

    Nobody here saw the data or the generator: that the batches came from the dataset, and the
    noise from where the log says, stays the runner's word.

    Raises:
        NotFound: no such run.
        Forbidden: ``sealed`` without the scope.
    """
    if sealed:
        principal.require(AUDIT_SCOPE)
    run = get_owned(session, principal, Run, run_id)
    dataset = session.get_one(Dataset, run.dataset_id)
    account = dataset.accounts[-1]
    reservation = session.get_one(Reservation, run.reservation_id)
    tail = tail_of(session, run).runs
    found, facts = _read(
        chunks_of(session, run.id), vault=vault, sealed=run.ended_at is not None, tail=tail
    )
    records = dataset.max_records_per_unit
    whole = run.state == "completed" and run.next_step == reservation.total_steps
    return Evidence(
        subject="run",
        declared=for_unit(from_json(run.mechanism), records=records),
        reserved=for_unit(from_json(reservation.mechanism), records=records),
        replayed=for_unit(replay.replay(found), records=records),
        certain=replay.certain_part(found),
        log=facts,
        ledger=_ledger(session, reservation, account),
        account=_account(account, dataset),
        ending=_ending(run.state, None),
        privacy_unit=dataset.privacy_unit,
        record_count=dataset.record_count,
        record_count_is_public=dataset.record_count_is_public,
        expected_batch_size=max((r.record.expected_batch_size for r in found), default=None),
        stop_rule="fixed_steps" if whole else None,
        sealed=_measures(session, run.id, found, vault=vault) if sealed else None,
    )


def of_log(uploads: Sequence[noise_log.Upload], *, planned: Event | None) -> Evidence:
    """The evidence of a log that somebody sends: consistent at best, attested by nobody."""
    columns = noise_log.columns([upload.record for upload in uploads])
    contiguous = noise_log.is_contiguous(columns)
    found = replay.runs(columns) if contiguous else ()
    return Evidence(
        subject="log",
        reserved=planned,
        replayed=replay.replay(found),
        certain=replay.certain_part(found),
        log=LogFacts(
            steps=len(uploads),
            contiguous=contiguous,
            fault=None if contiguous else "The steps do not follow each other from 0 on.",
        ),
        expected_batch_size=max(upload.record.expected_batch_size for upload in uploads),
    )


def of_parameters(mechanism: Event) -> Evidence:
    """The evidence of a bare statement: the mechanism itself."""
    return Evidence(subject="parameters", declared=mechanism)


def separation_of(event: Event | None, *, neighboring: Neighboring | None) -> Interval | None:
    """κ of what ran, where the bounds know its sampler; None elsewhere."""
    if neighboring is None:
        return None
    try:
        match event:
            case EpochDpSgd(count_noise_stddev=None):
                return _epoch_separation(event, neighboring)
            case StepwiseDpSgd(sampler="poisson", schedule=(segment,), count_noise_stddev=None):
                updates = round(min(1 / segment.sampling_rate, MAX_STEPS + 1))
                if abs(updates * segment.sampling_rate - 1) > 1e-12:  # noqa: PLR2004 - q is 1/M
                    return None
                if segment.steps % updates:
                    return None
                return separation(
                    noise_multiplier=segment.noise_multiplier,
                    updates_per_epoch=updates,
                    epochs=segment.steps // updates,
                    sampler="poisson",
                    neighboring=neighboring,
                ).kappa
            case _:
                return None
    except InvalidInput:  # outside of the bounds' domain: not examined, and said so
        return None


def _epoch_separation(event: EpochDpSgd, neighboring: Neighboring) -> Interval:
    def kappa(epochs: int) -> Interval:
        return separation(
            noise_multiplier=event.noise_multiplier,
            updates_per_epoch=event.updates_per_epoch,
            epochs=epochs,
            sampler=event.sampler,
            neighboring=neighboring,
        ).kappa

    whole = kappa(event.epochs)
    if event.sampler != "shuffle" or event.remainder == "kept":
        return whole
    # A dropped remainder: the record is in the first epoch with a probability above M/(M+1).
    share = event.updates_per_epoch / (event.updates_per_epoch + 1)
    return Interval(min(kappa(1).lower * share, whole.upper), whole.upper)


def _read(
    chunks: Sequence[NoiseChunk],
    *,
    vault: Vault,
    sealed: bool,
    tail: Sequence[replay.Run] = (),
) -> tuple[list[replay.Run], LogFacts]:
    """The runs of a stored log, read from its objects and compared with what was recorded."""
    found: list[replay.Run] = []
    expected, fault, previous, chained = 0, None, None, True
    for chunk in chunks:
        try:
            stored = replay.runs(log_chunks.records_of(vault.objects, chunk.released_object))
        except OSError:
            fault = fault or f"The chunk from step {chunk.first_step} is missing or damaged."
            stored = ()
        summary = runs_of(chunk.summary)
        if stored and stored != summary:
            fault = fault or f"The chunk from step {chunk.first_step} is not what was recorded."
        if chunk.first_step != expected:
            fault = fault or f"Step {expected} should come next, not {chunk.first_step}."
        chained = chained and seal(summary, previous=previous).link == chunk.link
        expected, previous = chunk.end_step, chunk.link
        found += summary
    found += tail
    expected = tail[-1].end_step if tail else expected
    steps = sum(run.steps for run in found)
    contiguous = steps == expected and all(a.end_step == b.first_step for a, b in pairwise(found))
    facts = LogFacts(
        steps=steps,
        contiguous=contiguous,
        digests_match=fault is None,
        chained=chained,
        sealed=sealed,
        fault=fault,
    )
    return found, facts


def _in_the_log(
    session: Session, chunks: Sequence[NoiseChunk], facts: LogFacts, *, job: Job
) -> LogFacts:
    """The facts, with what the Merkle log says of the chunks.

    Each leaf of a chunk names the leaf before it by its hash, so that a proof that the last
    one is in the tree binds them all.
    """
    if not chunks:
        return facts
    leaves = [
        entry
        for entry in log.entries_about(session, tenant_id=job.tenant_id, subject_ids=[job.id])
        if entry.kind == "chunk"
    ]
    bodies = [log.body_of(entry) for entry in leaves]
    said = [(b["first_step"], b["end_step"], b["parquet_sha256"]) for b in bodies]
    same = said == [(c.first_step, c.end_step, c.released_object) for c in chunks]
    hashes = [merkle.leaf_hash(entry.leaf.encode()).hex() for entry in leaves]
    chained = [body["previous"] for body in bodies] == [None, *hashes[:-1]]
    included = False
    if leaves:
        head = log.head(session).frontier
        _, proof = log.inclusion_proof(session, index=leaves[-1].index, size=head.size)
        included = merkle.verify_inclusion(
            bytes.fromhex(hashes[-1]),
            index=leaves[-1].index,
            size=head.size,
            proof=proof,
            root=head.root,
        )
    return replace(facts, chained=same and chained, included=same and included)


def _ledger(session: Session, reservation: Reservation, account: Account) -> LedgerFacts:
    adjustments = session.scalar(
        select(func.count())
        .select_from(LedgerEntry)
        .where(LedgerEntry.account_id == account.id, LedgerEntry.kind == "adjust")
    )
    ended = reservation.state not in ("pending", "leased")
    # What was posted in the end, not what should have been: a reservation that was released
    # or expired has posted its leases alone.
    settled = NOTHING if reservation.executed is None else from_json(reservation.executed)
    try:
        charged = max(reservation.leased_steps, replay.step_count(settled))
    except ValueError:
        charged = reservation.leased_steps
    return LedgerFacts(
        reserved_steps=reservation.total_steps,
        leased_steps=reservation.leased_steps,
        settled_steps=charged if ended else None,
        adjustments=adjustments or 0,
    )


def _account(account: Account, dataset: Dataset) -> AccountFacts:
    return AccountFacts(
        epsilon=float(account.epsilon),
        delta=float(account.delta),
        neighboring=cast("Neighboring", account.neighboring),
        privacy_unit=dataset.privacy_unit,
        state=cast("AccountState", account.state),
    )


def _ending(state: str, error: Mapping[str, Any] | None) -> Ending:
    if error is not None and error.get("code") == "DEADLINE_EXCEEDED":
        return "deadline"
    return _ENDINGS.get(state, "open")


def _measures(
    session: Session, subject_id: str, log: Sequence[replay.Run], *, vault: Vault
) -> SealedMeasures:
    """The sealed columns, beside what the public records say of the same steps."""
    parts = sealed_parts(session, subject_id)
    hidden = log_chunks.sealed_log(vault.objects, parts, subject_id=subject_id, sealer=vault.sealer)
    lines = {line["step"]: line for line in hidden}
    rows: list[dict[str, Any]] = [
        {
            **lines[record.step]["sealed"],
            "at": lines[record.step]["at"],
            "sampling_rate": record.sampling_rate,
            "noise_stddev": record.noise_multiplier * record.max_grad_norm,
        }
        for record in replay.expanded(log)
        if record.step in lines
    ]
    dimensions = {
        value
        for row in rows
        for value in (row.get("noise_dimension", row.get("dimension")),)
        if isinstance(value, int) and value > 0
    }
    return SealedMeasures(
        realized_batch_size=_column(rows, "realized_batch_size", np.int64),
        sampling_rate=_column(rows, "sampling_rate", np.float64),
        noise_norm=_column(rows, "noise_norm", np.float64),
        noise_stddev=_column(rows, "noise_stddev", np.float64),
        dimension=dimensions.pop() if len(dimensions) == 1 else None,
        clock_forward=noise_log.times_go_forward([row["at"] for row in rows]),
    )


def _column(rows: Sequence[dict[str, Any]], name: str, kind: type[T]) -> NDArray[T] | None:
    """A measure of every step; None where a step lacks it, or has what is no such number."""
    values = [row.get(name) for row in rows]
    whole = np.issubdtype(kind, np.integer)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if whole and (abs(value) > _MAX_MEASURE or value != int(value)):
            return None
    return np.asarray(values, dtype=kind) if values else None
