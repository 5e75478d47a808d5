"""/v1/log: the Merkle log, its signed checkpoint, its proofs; and the keys that sign it."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from service.api.deps import AnyKey, Caller, Parts, parts_of
from service.api.lists import After
from service.db import tables
from service.operations import bundles, log, signing_keys
from service.schemas.lists import Limit
from service.schemas.log import ConsistencyProof, InclusionProof, LogEntries, LogEntry

router = APIRouter(tags=["Log"])

Index = Annotated[int, Query(ge=0, lt=2**63)]
Size = Annotated[int | None, Query(ge=1, lt=2**63, description="Default: the newest.")]


@router.get("/v1/log/entries")
def list_log_entries(caller: AnyKey, limit: Limit = 20, after: After = None) -> LogEntries:
    """Leaves in the order of the log: everybody's hashes, and what your own leaves say."""
    with caller.parts.database.read() as session:
        page = log.entries(session, limit=limit, after=after)
        return LogEntries(
            data=[_entry(row, caller) for row in page.rows],
            has_more=page.has_more,
            next_cursor=page.next_cursor,
        )


@router.get(
    "/v1/log/checkpoint",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_checkpoint(caller: AnyKey) -> Response:
    """The log's size and root as a signed note (c2sp.org/tlog-checkpoint)."""
    head = caller.read(log.head)
    note = log.signed_checkpoint(head.checkpoint, signer=caller.parts.signer)
    return Response(
        note, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"}
    )


@router.get("/v1/log/proofs/inclusion")
def get_inclusion_proof(caller: AnyKey, index: Index, size: Size = None) -> InclusionProof:
    """The audit path of a leaf."""
    with caller.parts.database.read() as session:
        tree_size, path = log.inclusion_proof(session, index=index, size=size)
        return InclusionProof(
            index=index,
            tree_size=tree_size,
            leaf_sha256=log.leaf_hash_at(session, index=index).hex(),
            root_sha256=log.root_at(session, size=tree_size).hex(),
            hashes=[found.hex() for found in path],
        )


@router.get("/v1/log/proofs/consistency")
def get_consistency_proof(
    caller: AnyKey,
    old: Annotated[int, Query(alias="from", ge=0, lt=2**63)],
    new: Annotated[int | None, Query(alias="to", ge=0, lt=2**63)] = None,
) -> ConsistencyProof:
    """The proof that an older log is the beginning of a newer one."""
    with caller.parts.database.read() as session:
        to_size, hashes = log.consistency_proof(session, old=old, new=new)
        return ConsistencyProof(
            from_size=old,
            to_size=to_size,
            from_root_sha256=log.root_at(session, size=old).hex(),
            to_root_sha256=log.root_at(session, size=to_size).hex(),
            hashes=[found.hex() for found in hashes],
        )


@router.get("/.well-known/dpledger-keys.json")
def list_signing_keys(parts: Annotated[Parts, Depends(parts_of)]) -> dict[str, Any]:
    """Every public key that signs or has signed here; no API key needed."""
    with parts.database.read() as session:
        known = signing_keys.known(session, parts.signer)
        return bundles.key_list(known, origin=log.head(session).origin)


def _entry(row: tables.LogEntry, caller: Caller) -> LogEntry:
    own = log.readable(caller.principal, row)
    return LogEntry(
        index=row.index,
        leaf_sha256=row.leaf_hash,
        kind=row.kind if own else None,
        subject_id=row.subject_id if own else None,
        leaf=row.leaf if own else None,
        body=log.body_of(row) if own else None,
        created_at=row.created_at if own else None,
    )
