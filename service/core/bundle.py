"""Verification of a certificate's bundle, offline, in numbered steps.

Which digest binds what:

* the signature binds the statement; the statement names leaves of the log by their hashes and
  chunks by the digests of their records;
* a leaf's hash binds its bytes; its inclusion proof and the checkpoint's signature bind it to
  the log; the consistency proof binds the certificate's checkpoint to the bundle's;
* a chunk's leaf binds its records (``sha256``, over their canonical lines, which
  ``chunks/….runs.json`` gives in short), its Parquet file (``parquet_sha256``) and the leaf of
  the chunk before it (``previous``).

Files come in as bytes, steps go out; nothing here reads a clock or a file.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import InvalidOperation
from typing import Any, Final, Literal

from service.core import merkle
from service.core.bundle_case import (
    CHECKPOINT,
    CONSISTENCY,
    ENVELOPE,
    GUIDE,
    KEYS,
    OLD_LIST,
    PAE,
    SIGNATURE,
    Case,
    Fails,
    Policy,
    Skips,
    chunks,
    entries,
    included,
    leaf_name,
    opened,
    own_leaves,
    parquet_name,
    proof_name,
    read_leaf,
    runs_name,
)
from service.core.bundle_run import epsilon_step, ledger_step, noise_log_step, parquet_step
from service.core.certificate import (
    as_object,
    as_time,
    canonical_json,
    key_fault,
    pae,
    parse_envelope,
    parse_keys,
    parse_statement,
    pem,
    signer_of,
)
from service.core.checkpoint import Malformed
from service.core.errors import DomainError

Result = Literal["pass", "fail", "not_examined"]
StepName = Literal[
    "files",
    "envelope",
    "signature",
    "issuer_key",
    "validity",
    "checkpoint",
    "consistency",
    "leaves",
    "logged",
    "noise_log",
    "parquet",
    "ledger",
    "epsilon",
    "status_now",
]

_BY_CHANCE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, InvalidOperation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The outcome of one numbered step."""

    number: int
    name: StepName
    result: Result
    detail: str


def verify(files: Mapping[str, bytes], *, policy: Policy) -> tuple[Step, ...]:
    """Examine every claim of a bundle that can be examined without its issuer.

    Guarantees: a step passes only if what it says was verified; a file that nothing vouches
    for, missing or additional, is a failure. ε is recomputed from the released records by
    certified accounting and compared from above.

    Args:
        files: the bundle's files by their names.
        policy: time, cryptography, accounting and trust of whoever verifies.
    """
    case = Case(files, policy)
    return tuple(
        _examined(number, name, step, case) for number, (name, step) in enumerate(_STEPS, start=1)
    )


def certified(files: Mapping[str, bytes]) -> dict[str, Any]:
    """What the bundle's statement says; whether it is true is ``verify``'s to say.

    Raises:
        Malformed: it cannot be read.
    """
    envelope = files.get(ENVELOPE)
    if envelope is None:
        raise Malformed(f"{ENVELOPE} is missing.")
    statement = parse_statement(parse_envelope(envelope).payload)
    try:
        predicate = statement["predicate"]
        guarantee, claim, issuer = (predicate[n] for n in ("guarantee", "claim", "issuer"))
        return {
            "certificate_id": predicate["certificate_id"],
            "subjects": [
                {"name": s["name"], "sha256": s["digest"]["sha256"]} for s in statement["subject"]
            ],
            **{n: guarantee[n] for n in ("epsilon", "delta", "neighboring", "privacy_unit")},
            **{name: claim.get(name) for name in ("scope", "release", "evidence_level")},
            "issuer": issuer.get("id"),
            **{name: issuer[name] for name in ("issued_at", "valid_until")},
        }
    except _BY_CHANCE as error:
        raise Malformed("The statement lacks what it certifies.") from error


def _examined(number: int, name: StepName, step: Callable[[Case], str], case: Case) -> Step:
    def outcome(result: Result, detail: str) -> Step:
        return Step(number=number, name=name, result=result, detail=detail)

    try:
        return outcome("pass", step(case))
    except Fails as fault:
        return outcome("fail", str(fault))
    except Skips as reason:
        return outcome("not_examined", str(reason))
    except DomainError as error:
        return outcome("fail", error.message)
    except _BY_CHANCE as error:  # a field that is not there, or is something else
        return outcome("fail", f"The statement or a leaf is malformed ({type(error).__name__}).")


def _files(case: Case) -> str:
    envelope = parse_envelope(case.file(ENVELOPE))
    predicate = as_object(parse_statement(envelope.payload)["predicate"], what="The predicate")
    named = {ENVELOPE, PAE, SIGNATURE, CHECKPOINT, CONSISTENCY, KEYS, GUIDE}
    indices = [entry["index"] for entry in entries(predicate)]
    named |= {leaf_name(i) for i in indices} | {proof_name(i) for i in indices}
    for chunk in chunks(predicate):
        place = (chunk["first_step"], chunk["end_step"])
        named |= {runs_name(*place), parquet_name(*place)}
    own = {name for index in own_leaves(case) for name in (leaf_name(index), proof_name(index))}
    keys = {name for name in case.files if name.startswith("keys/")}
    missing, strange = named - set(case.files), set(case.files) - named - own - keys
    if missing:
        raise Fails(f"{min(missing)} is missing.")
    if strange:
        raise Fails(f"{min(strange)} does not belong to this certificate.")
    if case.file(PAE) != pae(envelope.payload) or case.file(SIGNATURE) != envelope.signature:
        raise Fails(f"{PAE} and {SIGNATURE} are not those of {ENVELOPE}.")
    return f"{len(case.files)} files: all that the certificate names, and nothing else."


def _envelope(case: Case) -> str:
    case.envelope = parse_envelope(case.file(ENVELOPE))
    statement = parse_statement(case.envelope.payload)
    case.predicate = as_object(statement["predicate"], what="The predicate")
    names = ", ".join(str(subject["name"]) for subject in statement["subject"])
    return f"{case.predicate['certificate_id']}, a privacy certificate about {names}."


def _signature(case: Case) -> str:
    if case.envelope is None:
        raise Skips("There is no envelope.")
    case.keys = parse_keys(case.file(KEYS))
    key = signer_of(case.envelope, keys=case.keys, check_signature=case.policy.check_signature)
    for name, data in case.files.items():
        if name.startswith("keys/") and data not in {pem(k.public_key) for k in case.keys}:
            raise Fails(f"{name} is not a key of {KEYS}.")
    return f"Ed25519, by the key {key.key_id}."


def _issuer_key(case: Case) -> str:
    if case.envelope is None:
        raise Skips("There is no envelope.")
    issued = as_time(case.stated()["issuer"]["issued_at"])
    trusted = case.policy.trusted_keys
    known = case.keys if trusted is None else trusted
    if case.envelope.key_id not in {key.key_id for key in known}:
        if trusted is None:
            raise Skips("No key of the bundle signed it.")
        raise Fails(
            f"The key {case.envelope.key_id} is not on the list that you trust; {OLD_LIST}."
        )
    key = signer_of(case.envelope, keys=known, check_signature=case.policy.check_signature)
    fault = key_fault(key, at=issued)
    if fault is not None:
        raise Fails(fault)
    if trusted is None:
        raise Skips(
            f"Nobody but the bundle vouches for the key {key.key_id}: compare it with what the "
            "issuer publishes, or give the issuer's key list."
        )
    return "The key is on the list that you trust, and was good when it signed."


def _validity(case: Case) -> str:
    issuer, now = case.stated()["issuer"], case.policy.now
    issued, until = as_time(issuer["issued_at"]), as_time(issuer["valid_until"])
    if now < issued:
        raise Fails(f"It was issued later than now, at {issuer['issued_at']}.")
    if now > until:
        raise Fails(f"It was valid until {issuer['valid_until']}.")
    try:
        own = [read_leaf(case, index) for index in own_leaves(case)]
    except Malformed as error:  # the steps about files and the log accuse it
        raise Skips(f"Whether it was revoked cannot be read: {error.message}") from error
    for leaf in own:
        if leaf["kind"] == "revoke":
            body = leaf["body"]
            raise Fails(f"It was {body['state']} at {leaf['at']}: {body['reason'] or 'no reason'}")
    return f"Valid from {issuer['issued_at']} until {issuer['valid_until']}."


def _checkpoint(case: Case) -> str:
    stated = case.stated()["log"]
    point = opened(case, case.text(CHECKPOINT), what=CHECKPOINT)
    if point.origin != stated["origin"]:
        raise Fails(f"The checkpoint is of {point.origin}, another log.")
    case.point = point
    return f"{case.point.origin} at {case.point.size} leaves, signed."


def _consistency(case: Case) -> str:
    stated = case.stated()["log"]
    if case.point is None:
        raise Skips("There is no good checkpoint.")
    old = opened(case, str(stated["checkpoint"]), what="The certificate's checkpoint")
    if old.origin != case.point.origin:
        raise Fails("The certificate's checkpoint is of another log.")
    given = as_object(canonical_json(case.file(CONSISTENCY), what=CONSISTENCY), what=CONSISTENCY)
    if (given["from"], given["to"]) != (old.size, case.point.size):
        raise Fails("The consistency proof is about other sizes.")
    if old.size > case.point.size:
        raise Fails("The log was rolled back: it is shorter than when the certificate was made.")
    if not merkle.verify_consistency(
        old.size,
        new=case.point.size,
        old_root=old.root,
        new_root=case.point.root,
        proof=[bytes.fromhex(text) for text in given["hashes"]],
    ):
        raise Fails("The log was rewritten: what the certificate saw is not its beginning.")
    return f"The {old.size} leaves that the certificate saw are its beginning."


def _leaves(case: Case) -> str:
    stated = entries(case.stated())
    if case.point is None:
        raise Skips("There is no good checkpoint.")
    order = [entry["index"] for entry in stated]
    if order != sorted(set(order)):
        raise Fails("The leaves are not named in the order of the log.")
    for entry in stated:
        index = entry["index"]
        named = str(entry["leaf_sha256"])
        if included(case, index, named=named).hex() != named:
            raise Fails(f"Leaf {index} is not the one that the certificate names.")
        case.leaves[index] = read_leaf(case, index)
    case.leaves_verified = True
    if not stated:
        raise Skips("The certificate names no leaves: it is about stated parameters.")
    return f"{len(stated)} leaves, each as named and included."


def _logged(case: Case) -> str:
    """The certificate itself is in the log: it was not made beside it."""
    digest = hashlib.sha256(case.file(ENVELOPE)).hexdigest()
    if case.point is None:
        raise Skips("There is no good checkpoint.")
    found = 0
    for index in own_leaves(case):
        included(case, index)
        leaf = read_leaf(case, index)
        if leaf["kind"] == "certificate":
            if leaf["body"]["envelope_sha256"] != digest:
                raise Fails("The log has another certificate under this name.")
            found += 1
    if found != 1:
        raise Fails("The certificate is not in the log.")
    return "The log has this very envelope."


def _status_now(case: Case) -> str:
    where = case.stated()["issuer"]["status_url"]
    raise Skips(f"Whether it was revoked since: ask {where}.")


_STEPS: Final[tuple[tuple[StepName, Callable[[Case], str]], ...]] = (
    ("files", _files),
    ("envelope", _envelope),
    ("signature", _signature),
    ("issuer_key", _issuer_key),
    ("validity", _validity),
    ("checkpoint", _checkpoint),
    ("consistency", _consistency),
    ("leaves", _leaves),
    ("logged", _logged),
    ("noise_log", noise_log_step),
    ("parquet", parquet_step),
    ("ledger", ledger_step),
    ("epsilon", epsilon_step),
    ("status_now", _status_now),
)
