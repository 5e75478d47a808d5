"""Signed checkpoints of the log, and inclusion proofs as text: the formats of C2SP.

A checkpoint says how many leaves a log has and which root they give. It is a *signed note*:
a text, an empty line, and one line per signature, which names the signer and the key. A
``tlog-proof`` joins a leaf's index, its audit path and a checkpoint, and can be verified alone.

Source: c2sp.org/signed-note, c2sp.org/tlog-checkpoint, c2sp.org/tlog-proof.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from service.core.errors import InvalidInput

_ED25519: Final = b"\x01"  # the algorithm byte of signed notes
_PROOF_HEADER: Final = "c2sp.org/tlog-proof@v1"
_KEY_HASH_BYTES: Final = 4


class CheckSignature(Protocol):
    """Verifies an Ed25519 signature; False for anything that does not verify."""

    def __call__(self, public_key: bytes, /, *, signature: bytes, message: bytes) -> bool:
        """Whether ``signature`` is the key's, over ``message``."""
        ...


class Malformed(InvalidInput):
    """Text or bytes that do not have the form they should."""

    code = "MALFORMED"

    def __init__(self, message: str) -> None:
        super().__init__(message, pointer="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A log at one size.

    Args:
        origin: which log, one line.
        size: leaves.
        root: the root hash over them, 32 bytes.
    """

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The body of the note: what is signed."""
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlogProof:
    """An inclusion proof that carries its checkpoint."""

    index: int
    hashes: tuple[bytes, ...]
    note: str


def key_hash(name: str, public_key: bytes) -> bytes:
    """The four bytes by which a note's signature names its Ed25519 key."""
    data = name.encode() + b"\n" + _ED25519 + public_key
    return hashlib.sha256(data).digest()[:_KEY_HASH_BYTES]


def verifier_key(name: str, public_key: bytes) -> str:
    """The key as tools for signed notes take it: ``name+hash+key``."""
    return f"{name}+{key_hash(name, public_key).hex()}+{_base64(_ED25519 + public_key)}"


def signed_note(text: str, *, name: str, public_key: bytes, signature: bytes) -> str:
    """The note of ``text`` with one signature over exactly that text."""
    assert text.endswith("\n")
    line = _base64(key_hash(name, public_key) + signature)
    return f"{text}\n— {name} {line}\n"


def open_checkpoint(
    note: str, *, public_keys: Sequence[bytes], check_signature: CheckSignature
) -> Checkpoint:
    """The checkpoint of a note that one of the keys has signed under the log's origin.

    Raises:
        Malformed: no checkpoint, or no good signature of these keys.
    """
    found = parse_checkpoint(note)
    message, _, signatures = note.rpartition("\n\n")
    for line in signatures.splitlines():
        name, key, signature = _signature(line)
        if name != found.origin:
            continue  # a witness's, or somebody else's
        for public_key in public_keys:
            named = hmac.compare_digest(key, key_hash(name, public_key))
            signed = (message + "\n").encode()
            if named and check_signature(public_key, signature=signature, message=signed):
                return found
    raise Malformed("No signature of the log's keys is on the checkpoint.")


def parse_checkpoint(note: str) -> Checkpoint:
    """What a note says, whoever signed it.

    Raises:
        Malformed: no checkpoint.
    """
    message, separator, signatures = note.rpartition("\n\n")
    lines = (message + "\n").split("\n")
    if not separator or not signatures or len(lines) < 4:
        raise Malformed("This is no signed checkpoint.")
    origin, size, root = lines[:3]
    if not origin or not _is_number(size):
        raise Malformed("A checkpoint says its origin and its size.")
    return Checkpoint(origin=origin, size=int(size), root=_hash(root))


def tlog_proof(index: int, *, hashes: Sequence[bytes], note: str) -> str:
    """The proof as text."""
    lines = [_PROOF_HEADER, f"index {index}", *(_base64(h) for h in hashes)]
    return "\n".join(lines) + "\n\n" + note


def parse_tlog_proof(text: str) -> TlogProof:
    """The proof of a text; an ``extra`` line is skipped: nothing vouches for it.

    Raises:
        Malformed: not a proof.
    """
    head, separator, note = text.partition("\n\n")
    lines = head.split("\n")
    if not separator or lines[0] != _PROOF_HEADER:
        raise Malformed(f"A proof begins with {_PROOF_HEADER}.")
    rest = lines[2:] if len(lines) > 1 and lines[1].startswith("extra ") else lines[1:]
    label, _, number = (rest[0] if rest else "").partition(" ")
    if label != "index" or not _is_number(number):
        raise Malformed("A proof says the index of its leaf.")
    return TlogProof(index=int(number), hashes=tuple(_hash(line) for line in rest[1:]), note=note)


def _signature(line: str) -> tuple[str, bytes, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    if dash != "—" or not name:
        raise Malformed("A signature's line reads: — name base64.")
    data = _decoded(encoded)
    return name, data[:_KEY_HASH_BYTES], data[_KEY_HASH_BYTES:]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19 and text == str(int(text))


def _hash(text: str) -> bytes:
    data = _decoded(text)
    if len(data) != 32:
        raise Malformed("A hash has 32 bytes.")
    return data


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Malformed("This is not base64.") from error
    if _base64(data) != text:  # one text for each value, so that nothing can be flipped unseen
        raise Malformed("This is not canonical base64.")
    return data
