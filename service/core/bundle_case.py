"""What the steps of a bundle's verification share: its files, its names, what was found so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from service.core import checkpoint, merkle
from service.core.certificate import (
    Envelope,
    PublicKey,
    as_object,
    canonical_json,
    parse_envelope,
    parse_statement,
)
from service.core.checkpoint import Checkpoint, CheckSignature, Malformed
from service.core.claims import EpsilonOf
from service.core.replay import Run

ENVELOPE: Final = "envelope.json"
PAE: Final = "certificate.pae"
SIGNATURE: Final = "certificate.sig"
CHECKPOINT: Final = "checkpoint.txt"
CONSISTENCY: Final = "consistency.json"
KEYS: Final = "keys.json"
GUIDE: Final = "VERIFY.md"
OLD_LIST: Final = (
    "the list may be older than the key: fetch …/.well-known/dpledger-keys.json over a channel "
    "that you trust"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What whoever verifies brings along.

    Args:
        now: the present time.
        check_signature: Ed25519.
        epsilon_of: certified accounting.
        trusted_keys: the issuer's keys from elsewhere; None takes those of the bundle, and
            then nobody vouches for the issuer.
    """

    now: datetime
    check_signature: CheckSignature
    epsilon_of: EpsilonOf
    trusted_keys: Sequence[PublicKey] | None = None


class Fails(Exception):
    """The step fails, for this reason."""


class Skips(Exception):
    """The step cannot be examined here, for this reason."""


@dataclass(slots=True)
class Case:
    """What earlier steps found; a step that needs what is missing is not examined."""

    files: Mapping[str, bytes]
    policy: Policy
    envelope: Envelope | None = None
    predicate: dict[str, Any] | None = None
    keys: tuple[PublicKey, ...] = ()
    point: Checkpoint | None = None
    leaves: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    leaves_verified: bool = False
    runs: list[Run] | None = None

    def stated(self) -> dict[str, Any]:
        """The predicate."""
        if self.predicate is None:
            raise Skips("There is no statement to compare with.")
        return self.predicate

    def file(self, name: str) -> bytes:
        """A file that must be there."""
        found = self.files.get(name)
        if found is None:
            raise Fails(f"{name} is missing.")
        return found

    def text(self, name: str) -> str:
        """A file that must be there and be text."""
        try:
            return self.file(name).decode()
        except UnicodeDecodeError as error:
            raise Fails(f"{name} is no text.") from error

    def about(self, kind: str) -> list[dict[str, Any]]:
        """The bodies of all named leaves of a kind, in the order of the log, once verified."""
        if not self.leaves_verified:
            raise Skips("It rests on the leaves, and the leaves did not verify.")
        return [leaf["body"] for _, leaf in sorted(self.leaves.items()) if leaf.get("kind") == kind]


def runs_name(first_step: int, end_step: int) -> str:
    """The file that gives a chunk's records in short."""
    return f"chunks/{first_step:010d}-{end_step:010d}.runs.json"


def parquet_name(first_step: int, end_step: int) -> str:
    """The file that holds a chunk as it was stored."""
    return f"chunks/{first_step:010d}-{end_step:010d}.parquet"


def leaf_name(index: int) -> str:
    """The file of a leaf: the bytes that were hashed."""
    return f"leaves/{index}.json"


def proof_name(index: int) -> str:
    """The file of a leaf's inclusion proof."""
    return f"proofs/{index}.tlog-proof"


def key_name(key_id: str) -> str:
    """The file of a public key, for openssl."""
    return f"keys/{key_id}.pem"


def entries(predicate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The leaves that a certificate names."""
    return predicate["log"]["entries"]


def chunks(predicate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chunks that a certificate names."""
    return predicate["log"]["chunks"]


def own_leaves(case: Case) -> list[int]:
    """Leaves of the bundle about the certificate itself: issued, revoked."""
    envelope = parse_envelope(case.file(ENVELOPE))
    predicate = parse_statement(envelope.payload)["predicate"]
    named = {leaf_name(entry["index"]) for entry in entries(predicate)}
    found: list[int] = []
    for name in case.files:
        if name.startswith("leaves/") and name not in named:
            number = name.removeprefix("leaves/").removesuffix(".json")
            if not number.isdecimal() or leaf_name(int(number)) != name:
                continue
            leaf = read_leaf(case, int(number))
            about = leaf["body"].get("certificate_id")
            if leaf["kind"] in ("certificate", "revoke") and about == predicate["certificate_id"]:
                found.append(int(number))
    return sorted(found)


def read_leaf(case: Case, index: int) -> dict[str, Any]:
    """A leaf of the bundle; whether the log has it is ``included``'s to say."""
    name = leaf_name(index)
    leaf = as_object(canonical_json(case.file(name), what=name), what=name)
    as_object(leaf.get("body"), what=f"The body of {name}")
    return leaf


def included(case: Case, index: int, *, named: str | None = None) -> bytes:
    """The hash of a leaf of the bundle, which the checkpoint's tree has at this index.

    Args:
        case: what was found so far, with a good checkpoint.
        index: the leaf.
        named: the hash that the certificate names, to tell a bad leaf from a bad proof.
    """
    assert case.point is not None
    path = proof_name(index)
    leaf = merkle.leaf_hash(case.file(leaf_name(index)))
    try:
        proof = checkpoint.parse_tlog_proof(case.text(path))
    except Malformed as error:
        raise Fails(f"{path} is not readable as an inclusion proof: {error.message}") from error
    if proof.index != index or proof.note != case.text(CHECKPOINT):
        raise Fails(f"{path} is about another leaf or checkpoint.")
    if not merkle.verify_inclusion(
        leaf, index=index, size=case.point.size, proof=proof.hashes, root=case.point.root
    ):
        suspect = f"{leaf_name(index)} or {path}"
        if named is not None:
            suspect = path if leaf.hex() == named else leaf_name(index)
        raise Fails(f"Leaf {index} is not in the log: {suspect} was changed, moved or made up.")
    return leaf


def opened(case: Case, note: str, *, what: str) -> Checkpoint:
    """The checkpoint of a note that the issuer signed; a revoked key signs nothing."""
    trusted = case.policy.trusted_keys
    keys = case.keys if trusted is None else trusted
    good = [key.public_key for key in keys if key.revoked_at is None]
    if not good:
        raise Skips("There is no good key to check its signature with.")
    try:
        return checkpoint.open_checkpoint(
            note, public_keys=good, check_signature=case.policy.check_signature
        )
    except Malformed as error:
        raise Fails(f"{what}: {error.message}{_why_not(case, note)}") from error


def _why_not(case: Case, note: str) -> str:
    """Which key signed a checkpoint, if it is one that does not count."""
    for key in (*(case.policy.trusted_keys or ()), *case.keys):
        try:
            checkpoint.open_checkpoint(
                note,
                public_keys=[key.public_key],
                check_signature=case.policy.check_signature,
            )
        except Malformed:
            continue
        if key.revoked_at is not None:
            return f" The key {key.key_id} that signed it was revoked."
        return f" The key {key.key_id} that signed it is not on your list; {OLD_LIST}."
    return ""
