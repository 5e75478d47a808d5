"""The Merkle log on the wire."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from service.schemas.base import Wire

Hash = str


class LogEntry(Wire):
    """A leaf: its hash for everybody, what it says for its own tenant alone."""

    object: Literal["log_entry"] = "log_entry"
    index: int
    leaf_sha256: Hash = Field(description="SHA-256 of 0x00 and the leaf's bytes (RFC 6962).")
    kind: str | None = Field(description="null for another tenant's leaf.")
    subject_id: str | None
    leaf: str | None = Field(description="The canonical JSON that was hashed, byte for byte.")
    body: dict[str, Any] | None = Field(description="The body of the leaf, parsed.")
    created_at: datetime | None


class LogEntries(Wire):
    """A page of the log, oldest first."""

    object: Literal["list"] = "list"
    data: list[LogEntry]
    has_more: bool
    next_cursor: str | None


class InclusionProof(Wire):
    """Proof that the tree of ``tree_size`` leaves has the leaf at ``index``."""

    object: Literal["inclusion_proof"] = "inclusion_proof"
    index: int
    tree_size: int
    leaf_sha256: Hash
    root_sha256: Hash
    hashes: list[Hash] = Field(description="From the leaf to the root, hex.")


class ConsistencyProof(Wire):
    """Proof that the tree of ``from_size`` leaves is the beginning of that of ``to_size``."""

    object: Literal["consistency_proof"] = "consistency_proof"
    from_size: int
    to_size: int
    from_root_sha256: Hash
    to_root_sha256: Hash
    hashes: list[Hash]
