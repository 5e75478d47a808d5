"""The Merkle log: every effect leaves a leaf in the transaction that made it.

``append`` only collects. The leaves of a transaction get their indices together, as the very
last thing before its commit: one locked row (``log_head``) orders all transactions of a
database, and it is held no longer than three statements and the commit. It is taken after
every other lock, so it cannot be part of a deadlock.

A leaf is canonical JSON: ``{at, body, kind, salt}``. The salt (128 random bits) makes its hash
a hiding commitment: whoever sees the hash of another tenant's leaf cannot test guesses (R25).
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sqlalchemy import insert, select, tuple_, update
from sqlalchemy.orm import Session

from service.core import checkpoint, merkle
from service.core.canonical import canonical
from service.core.checkpoint import Checkpoint
from service.core.credentials import Principal
from service.core.errors import InvalidInput
from service.core.merkle import Frontier, Node
from service.db.session import before_commit
from service.db.tables import LogEntry, LogHead, LogNode
from service.operations.owned import Page
from service.signing import Signer

Kind = Literal[
    "account",
    "reserve",
    "lease",
    "settle",
    "release",
    "expire",
    "adjust",
    "chunk",
    "job",
    "api_key",
    "signing_key",
    "certificate",
    "revoke",
]
_LEAVES: Final = "log_leaves"
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A leaf that waits for its index."""

    tenant_id: str
    kind: Kind
    subject_id: str
    text: str
    hash: bytes
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The committed log: its origin and its frontier."""

    origin: str
    frontier: Frontier

    @property
    def checkpoint(self) -> Checkpoint:
        """What a checkpoint of this head says."""
        return Checkpoint(origin=self.origin, size=self.frontier.size, root=self.frontier.root)


def append(
    session: Session, kind: Kind, body: Mapping[str, Any], *, tenant_id: str, subject_id: str
) -> Leaf:
    """Add a leaf to the log if and when the transaction commits.

    Args:
        session: the transaction of the effect that the leaf records.
        kind: what happened.
        body: canonical JSON; amounts are decimal strings. No secret may be in it.
        tenant_id: who may read it.
        subject_id: what it is about: an account, reservation, job, key or certificate.

    Returns:
        The leaf with its hash; its index is given at the commit.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    leaf = {
        "at": now.isoformat().replace("+00:00", "Z"),
        "body": body,
        "kind": kind,
        "salt": secrets.token_hex(_SALT_BYTES),
    }
    data = canonical(leaf)
    made = Leaf(
        tenant_id=tenant_id,
        kind=kind,
        subject_id=subject_id,
        text=data.decode(),
        hash=merkle.leaf_hash(data),
        at=now,
    )
    if _LEAVES not in session.info:
        session.info[_LEAVES] = []
        before_commit(session, lambda: _sequence(session))
    session.info[_LEAVES].append(made)
    return made


def head(session: Session) -> Head:
    """The log as this session sees it."""
    row = session.execute(select(LogHead.origin, LogHead.size, LogHead.peaks)).one()
    return Head(
        origin=row.origin, frontier=Frontier(row.size, tuple(map(bytes.fromhex, row.peaks)))
    )


def signed_checkpoint(found: Checkpoint, *, signer: Signer) -> str:
    """The checkpoint as a note, signed with the installation's key under the log's origin."""
    signed = signer.sign(found.text.encode())
    return checkpoint.signed_note(
        found.text,
        name=found.origin,
        public_key=signed.public_key,
        signature=signed.signature,
    )


def inclusion_proof(
    session: Session, *, index: int, size: int | None
) -> tuple[int, tuple[bytes, ...]]:
    """The audit path of a leaf in the tree of ``size`` leaves (None: as large as it is now).

    Raises:
        InvalidInput: the log is smaller than that.
    """
    size = _known_size(session, size, pointer="/size")
    if index >= size:
        raise InvalidInput("The tree of this size has no such leaf.", pointer="/index")
    return size, merkle.inclusion_proof(index, size=size, fetch=lambda n: _nodes(session, n))


def consistency_proof(
    session: Session, *, old: int, new: int | None
) -> tuple[int, tuple[bytes, ...]]:
    """The proof that the log of ``old`` leaves is the beginning of that of ``new``.

    Raises:
        InvalidInput: the log is smaller than that, or ``new`` than ``old``.
    """
    new = _known_size(session, new, pointer="/to")
    if old > new:
        raise InvalidInput("from is at most to.", pointer="/from", code="INCONSISTENT")
    return new, merkle.consistency_proof(old, new=new, fetch=lambda n: _nodes(session, n))


def leaf_hash_at(session: Session, *, index: int) -> bytes:
    """The hash of the leaf at an index that the log has reached."""
    return _nodes(session, [Node(0, index)])[Node(0, index)]


def root_at(session: Session, *, size: int) -> bytes:
    """The root that the log had at ``size`` leaves, which it has reached."""
    return merkle.root_of(size, fetch=lambda nodes: _nodes(session, nodes))


def entries(session: Session, *, limit: int, after: str | None) -> Page[LogEntry]:
    """The next ``limit`` leaves after the index ``after``, oldest first, of every tenant.

    What of them a caller may see is ``readable``'s to say.

    Raises:
        InvalidInput: ``after`` is not a cursor.
    """
    start = -1
    if after is not None:
        if not (after.isascii() and after.isdigit() and len(after) < 19):  # noqa: PLR2004
            raise InvalidInput("after is the next_cursor of a list.", pointer="/after")
        start = int(after)
    query = select(LogEntry).where(LogEntry.index > start).order_by(LogEntry.index)
    found = session.scalars(query.limit(limit + 1)).all()
    rows = found[:limit]
    return Page(rows, str(rows[-1].index) if len(found) > limit else None)


def readable(principal: Principal, entry: LogEntry) -> bool:
    """True if the caller may read the leaf itself; everybody sees its hash."""
    return entry.tenant_id == principal.tenant_id


def entries_about(
    session: Session, *, tenant_id: str, subject_ids: Sequence[str]
) -> Sequence[LogEntry]:
    """The tenant's leaves about these subjects, in the order of the log."""
    query = select(LogEntry).where(
        LogEntry.subject_id.in_(subject_ids), LogEntry.tenant_id == tenant_id
    )
    return session.scalars(query.order_by(LogEntry.index)).all()


def body_of(entry: LogEntry) -> dict[str, Any]:
    """What a leaf says."""
    return json.loads(entry.leaf)["body"]


def last_hash(session: Session, *, subject_id: str, kind: Kind) -> str | None:
    """The hash of the newest leaf of this kind about a subject; None if there is none."""
    waiting: list[Leaf] = session.info.get(_LEAVES, [])
    for leaf in reversed(waiting):
        if (leaf.subject_id, leaf.kind) == (subject_id, kind):
            return leaf.hash.hex()
    query = select(LogEntry.leaf_hash).where(
        LogEntry.subject_id == subject_id, LogEntry.kind == kind
    )
    return session.scalars(query.order_by(LogEntry.index.desc()).limit(1)).one_or_none()


def _sequence(session: Session) -> None:
    leaves: list[Leaf] = session.info.pop(_LEAVES)
    session.flush()  # what can still fail or wait does so before the lock that all want
    row = session.execute(select(LogHead.size, LogHead.peaks).with_for_update()).one()
    frontier = Frontier(row.size, tuple(map(bytes.fromhex, row.peaks)))
    rows: list[dict[str, Any]] = []
    nodes: list[dict[str, Any]] = []
    for leaf in leaves:
        rows.append(
            {
                "index": frontier.size,
                "tenant_id": leaf.tenant_id,
                "kind": leaf.kind,
                "subject_id": leaf.subject_id,
                "leaf": leaf.text,
                "leaf_hash": leaf.hash.hex(),
                "created_at": leaf.at,
            }
        )
        frontier, (_, *done) = merkle.append(frontier, leaf.hash)
        nodes += [
            {"level": node.level, "position": node.position, "hash": found.hex()}
            for node, found in done
        ]
    session.execute(insert(LogEntry), rows)
    if nodes:
        session.execute(insert(LogNode), nodes)
    session.execute(
        update(LogHead).values(size=frontier.size, peaks=[peak.hex() for peak in frontier.peaks])
    )


def _known_size(session: Session, size: int | None, *, pointer: str) -> int:
    known = session.execute(select(LogHead.size)).scalar_one()
    if size is not None and size > known:
        raise InvalidInput(f"The log has {known} leaves.", pointer=pointer)
    return known if size is None else size


def _nodes(session: Session, wanted: Sequence[Node]) -> Mapping[Node, bytes]:
    leaves = [node.position for node in wanted if node.level == 0]
    inner = [(node.level, node.position) for node in wanted if node.level > 0]
    found: dict[Node, bytes] = {}
    if leaves:
        of_leaves = select(LogEntry.index, LogEntry.leaf_hash).where(LogEntry.index.in_(leaves))
        for index, text in session.execute(of_leaves):
            found[Node(0, index)] = bytes.fromhex(text)
    if inner:
        of_nodes = select(LogNode.level, LogNode.position, LogNode.hash).where(
            tuple_(LogNode.level, LogNode.position).in_(inner)
        )
        for level, position, text in session.execute(of_nodes):
            found[Node(level, position)] = bytes.fromhex(text)
    return found
