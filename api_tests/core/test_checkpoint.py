"""Signed notes, checkpoints and proofs as text."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from service.core import checkpoint
from service.core.checkpoint import Checkpoint, Malformed
from service.signing import verifies

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
POINT = Checkpoint(origin="example.com/log", size=7, root=hashlib.sha256(b"root").digest())


def note(point=POINT, *, name=None):
    return checkpoint.signed_note(
        point.text,
        name=name or point.origin,
        public_key=PUBLIC,
        signature=KEY.sign(point.text.encode()),
    )


def opened(text, keys=(PUBLIC,)):
    return checkpoint.open_checkpoint(text, public_keys=keys, check_signature=verifies)


def test_a_signed_checkpoint_reads_back():
    assert note().startswith("example.com/log\n7\n")
    assert "\n\n— example.com/log " in note()
    assert opened(note()) == POINT
    assert opened(note(), keys=(OTHER, PUBLIC)) == POINT


def test_the_published_example_of_a_verifier_key_reads_the_same():
    # The Go checksum database's own key, as its client pins it.
    vkey = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
    public = bytes.fromhex("ce3372d75ad1ee5ecdaf8727293d4b111d87eb37531d7c86d4d3003f0eb809fc")
    assert checkpoint.verifier_key("sum.golang.org", public) == vkey


def test_witnesses_may_sign_too():
    witness = "— witness.example " + note().split(" ")[-1]
    assert opened(note() + witness) == POINT


@pytest.mark.parametrize("at", range(0, 150, 7))
def test_a_checkpoint_with_one_flipped_byte_is_refused(at):
    data = bytearray(note().encode())
    data[at % len(data)] ^= 1
    with pytest.raises((Malformed, UnicodeDecodeError)):
        opened(data.decode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "example.com/log\n7\n\n— example.com/log AAAA\n",
        note().replace("\n7\n", "\n07\n"),
        note().replace("\n7\n", "\n-7\n"),
        note().replace("— ", "- "),
        note(name="example.com/other"),
        note().rpartition("\n\n")[0] + "\n",
    ],
)
def test_what_is_no_signed_checkpoint_is_refused(text):
    with pytest.raises(Malformed):
        opened(text)


def test_a_checkpoint_of_another_key_is_refused():
    with pytest.raises(Malformed):
        opened(note(), keys=(OTHER,))


def test_a_proof_reads_back_with_its_checkpoint():
    hashes = (hashlib.sha256(b"a").digest(), hashlib.sha256(b"b").digest())
    text = checkpoint.tlog_proof(5, hashes=hashes, note=note())
    found = checkpoint.parse_tlog_proof(text)
    assert (found.index, found.hashes, found.note) == (5, hashes, note())
    with_extra = text.replace("index", "extra eA==\nindex", 1)
    assert checkpoint.parse_tlog_proof(with_extra) == found
    alone = checkpoint.parse_tlog_proof(checkpoint.tlog_proof(0, hashes=(), note=note()))
    assert (alone.index, alone.hashes) == (0, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "c2sp.org/tlog-proof@v1\n\nnote",
        "c2sp.org/tlog-proof@v1\nindex x\n\nnote",
        "c2sp.org/tlog-proof@v1\nindex 1\nAAAA\n\nnote",
        "c2sp.org/tlog-proof@v1\nindex 1\n!\n\nnote",
        "c2sp.org/tlog-proof@v2\nindex 1\n\nnote",
    ],
)
def test_what_is_no_proof_is_refused(text):
    with pytest.raises(Malformed):
        checkpoint.parse_tlog_proof(text)
