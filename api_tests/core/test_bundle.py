"""A bundle whose issuer signs whatever it likes: what the records themselves give away."""

import base64
import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from service.core import bundle, certificate, checkpoint, ledger, merkle
from service.core import bundle_case as names
from service.core.accounting import epsilon_interval
from service.core.bundle_case import Policy
from service.core.canonical import canonical
from service.core.certificate import SECTIONS, Envelope, PublicKey, Subject
from service.core.checkpoint import Checkpoint
from service.core.chunks import canonical_records, runs_of
from service.core.events import poisson, to_json
from service.signing import verifies

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
KEY_ID = hashlib.sha256(PUBLIC).hexdigest()
NOW = datetime(2026, 6, 1, tzinfo=UTC)
LISTED = (PublicKey(key_id=KEY_ID, public_key=PUBLIC, created_at=NOW - timedelta(days=9)),)
ORIGIN = "example.com/log"
STEPS = 300
EVENT = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=STEPS)
OPENED = {
    "account_id": "blk_1",
    "epsilon": "8",
    "delta": "0.00001",
    "neighboring": "add_or_remove_one",
    "privacy_unit": "record",
    "max_records_per_unit": 1,
    "composition": "renyi",
    "orders": [2, 8],
    "weights": ["0.5", "0.5"],
}
TERMS = ledger.AccountTerms(
    epsilon=Decimal(8),
    delta=Decimal("1e-5"),
    neighboring="add_or_remove_one",
    privacy_unit="record",
    composition="renyi",
    orders=(2.0, 8.0),
    weights=(Decimal("0.5"), Decimal("0.5")),
)
PRICE = [str(amount) for amount in ledger.price(EVENT, TERMS)]


def run(first, end, sigma=1.1):
    return {
        "steps": end - first,
        "step": first,
        "noise_multiplier": sigma,
        "max_grad_norm": 1,
        "sampler": "poisson",
        "sampling_rate": 0.01,
        "expected_batch_size": 600,
    }


class Liar:
    """A log of its own, a certificate on it, and keys that sign both."""

    def __init__(self):
        self.chunks = [[run(0, 100)], [run(100, STEPS)]]
        self.opened = dict(OPENED)
        self.lease = {"steps": {"first": 0, "end": STEPS}, "posted_change": PRICE}
        self.settle = {"account_state": "open", "posted_change": ["0", "0"]}
        self.reserve = {"mechanism": to_json(EVENT)}
        self.job = {"state": "succeeded", "steps": STEPS, "total_steps": STEPS}
        self.guarantee = {
            "epsilon": "1.2",
            "delta": "0.00001",
            "neighboring": "add_or_remove_one",
            "privacy_unit": "record",
            "max_records_per_unit": 1,
        }
        self.scope = "single_job"
        self.mechanisms = []
        self.account = "blk_1"
        self.logged = True

    def files(self):
        leaves, chunks, files = self._leaves()
        log = {
            "origin": ORIGIN,
            "checkpoint": note(leaves),
            "entries": [
                {"index": i, "kind": kind, "leaf_sha256": merkle.leaf_hash(data).hex()}
                for i, (kind, data) in enumerate(leaves)
            ],
            "chunks": chunks,
        }
        predicate = dict.fromkeys(SECTIONS) | {
            "certificate_id": "cert_1",
            "claim": {"scope": self.scope},
            "guarantee": self.guarantee,
            "mechanisms": self.mechanisms,
            "budget": {"account_id": "blk_1"},
            "log": log,
            "issuer": {
                "issued_at": "2026-05-31T00:00:00Z",
                "valid_until": "2027-05-31T00:00:00Z",
                "status_url": "https://example.com/cert_1",
            },
        }
        payload = certificate.statement([Subject(name="m", sha256="0" * 64)], predicate=predicate)
        envelope = Envelope(
            payload=payload, key_id=KEY_ID, signature=KEY.sign(certificate.pae(payload))
        )
        old = len(leaves)
        digest = hashlib.sha256(envelope.text.encode()).hexdigest()
        body = {"certificate_id": "cert_1", "envelope_sha256": digest}
        leaves.append(("certificate", leaf("certificate", body)))
        return files | packed(envelope, leaves, old=old)

    def _leaves(self):
        files, chunks, previous = {}, [], None
        leaves = [
            ("account", leaf("account", self.opened)),
            ("reserve", leaf("reserve", {"account_id": "blk_1", **self.reserve})),
            ("lease", leaf("lease", {"account_id": self.account, **self.lease})),
        ]
        for summary in self.chunks:
            first, end = summary[0]["step"], summary[-1]["step"] + summary[-1]["steps"]
            chunk = {
                "first_step": first,
                "end_step": end,
                "sha256": hashlib.sha256(canonical_records(runs_of(summary))).hexdigest(),
                "parquet_sha256": hashlib.sha256(b"PAR1").hexdigest(),
            }
            data = leaf("chunk", {**chunk, "previous": previous})
            previous = merkle.leaf_hash(data).hex()
            leaves.append(("chunk", data))
            chunks.append(chunk)
            files[names.runs_name(first, end)] = canonical(summary)
            files[names.parquet_name(first, end)] = b"PAR1"
        leaves += [
            ("settle", leaf("settle", {"account_id": "blk_1", **self.settle})),
            ("job", leaf("job", {"last_chunk": previous, **self.job})),
        ]
        return leaves, chunks, files


def leaf(kind, body):
    return canonical({"at": "2026-05-30T00:00:00Z", "body": body, "kind": kind, "salt": kind})


def tree_of(leaves):
    nodes, frontier = {}, merkle.Frontier()
    for _, data in leaves:
        frontier, done = merkle.append(frontier, merkle.leaf_hash(data))
        nodes.update(done)
    return frontier, lambda wanted: {node: nodes[node] for node in wanted}


def note(leaves):
    frontier, _ = tree_of(leaves)
    point = Checkpoint(origin=ORIGIN, size=frontier.size, root=frontier.root)
    signature = KEY.sign(point.text.encode())
    return checkpoint.signed_note(point.text, name=ORIGIN, public_key=PUBLIC, signature=signature)


def packed(envelope, leaves, *, old):
    frontier, fetch = tree_of(leaves)
    hashes = merkle.consistency_proof(old, new=frontier.size, fetch=fetch)
    files = {
        names.ENVELOPE: envelope.text.encode(),
        names.PAE: certificate.pae(envelope.payload),
        names.SIGNATURE: envelope.signature,
        names.CHECKPOINT: note(leaves).encode(),
        names.CONSISTENCY: canonical(
            {"from": old, "to": frontier.size, "hashes": [h.hex() for h in hashes]}
        ),
        names.KEYS: canonical(
            {
                "keys": [
                    {
                        "key_id": KEY_ID,
                        "public_key": base64.b64encode(PUBLIC).decode(),
                        "created_at": "2026-05-01T00:00:00Z",
                    }
                ]
            }
        ),
        names.GUIDE: b"",
    }
    for index, (_, data) in enumerate(leaves):
        path = merkle.inclusion_proof(index, size=frontier.size, fetch=fetch)
        files[names.leaf_name(index)] = data
        proof = checkpoint.tlog_proof(index, hashes=path, note=note(leaves))
        files[names.proof_name(index)] = proof.encode()
    return files


def outcomes(liar):
    return judged(liar.files())


def judged(files, *, keys=LISTED):
    policy = Policy(
        now=NOW, check_signature=verifies, epsilon_of=epsilon_interval, trusted_keys=keys
    )
    steps = bundle.verify(files, policy=policy)
    return {step.name: (step.result, step.detail) for step in steps}


def test_an_honest_issuer_passes():
    found = outcomes(Liar())
    assert {n for n, (r, _) in found.items() if r != "pass"} == {"status_now"}, found


LIES = {
    "epsilon understated": (
        "epsilon",
        "The records give",
        lambda x: x.guarantee.update(epsilon="0.4"),
    ),
    "one weak step": (
        "epsilon",
        "The records give",
        lambda x: x.chunks.__setitem__(0, [run(0, 50), run(50, 51, 0.3), run(51, 100)]),
    ),
    "a chunk left out": ("noise_log", "step 0 comes next", lambda x: x.chunks.pop(0)),
    "the last chunk left out": ("noise_log", "the chunks end at", lambda x: x.chunks.pop()),
    "steps left out inside": (
        "noise_log",
        "steps left out",
        lambda x: x.chunks.__setitem__(0, [run(0, 50), run(60, 110)]),
    ),
    "a run without steps": (
        "noise_log",
        "without steps",
        lambda x: x.chunks.__setitem__(0, [run(0, 0), run(0, 100)]),
    ),
    "fewer steps leased than ran": (
        "ledger",
        "were leased",
        lambda x: x.lease.update(steps={"first": 0, "end": 200}),
    ),
    "steps never leased": (
        "ledger",
        "never leased",
        lambda x: x.lease.update(steps={"first": 5, "end": STEPS}),
    ),
    "charged too little": (
        "ledger",
        "charged less",
        lambda x: x.lease.update(posted_change=["1", "1"]),
    ),
    "overdrawn": ("ledger", "overdrawn", lambda x: x.settle.update(account_state="overdrawn")),
    "another account": ("ledger", "another account", lambda x: setattr(x, "account", "blk_2")),
    "another unit": (
        "ledger",
        "another privacy_unit",
        lambda x: x.guarantee.update(privacy_unit="user"),
    ),
    "a cap below the account's": (
        "epsilon",
        "cap is",
        lambda x: (setattr(x, "scope", "dataset_lifetime"), x.guarantee.update(epsilon="7.9")),
    ),
    "a cap of another relation": (
        "epsilon",
        "cap is about",
        lambda x: (
            setattr(x, "scope", "dataset_lifetime"),
            x.guarantee.update(epsilon="8", neighboring="replace_one"),
        ),
    ),
    "a number that is none": ("epsilon", "malformed", lambda x: x.guarantee.update(epsilon="x")),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_signature_does_not_make_it_true(lie):
    step, reason, tell = LIES[lie]
    liar = Liar()
    tell(liar)
    found = outcomes(liar)
    assert found["signature"][0] == "pass"
    assert found["leaves"][0] == "pass"
    assert found[step][0] == "fail", found
    assert reason in found[step][1], found[step]


def test_R18_a_run_that_stopped_early_is_judged_at_T_max():
    stopped = Liar()
    stopped.reserve = {
        "mechanism": to_json(poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=3000))
    }
    stopped.job = {"state": "failed", "steps": STEPS, "total_steps": 3000}
    assert outcomes(stopped)["epsilon"][0] == "fail"
    stopped.guarantee["epsilon"] = "2.68"
    assert outcomes(stopped)["epsilon"][0] == "pass"


def test_R7_a_lifetime_claim_rests_on_the_account_s_cap():
    promised = Liar()
    promised.scope = "dataset_lifetime"
    promised.guarantee["epsilon"] = "8"
    assert outcomes(promised)["epsilon"][0] == "pass"


def test_a_sweep_is_not_judged_by_one_run():
    sweep = Liar()
    sweep.scope = "sweep"
    assert outcomes(sweep)["epsilon"][0] == "not_examined"


def test_an_order_that_overflowed_is_dead_and_binds_nobody():
    dead = Liar()
    dead.lease["posted_change"] = [None, PRICE[1]]
    assert outcomes(dead)["ledger"][0] == "pass"


def changed(files, name, old, new):
    assert old in files[name], name
    files[name] = files[name].replace(old, new, 1)


def a_proof_is_flipped(files):
    changed(files, names.proof_name(3), b"index 3\n", b"index 3\n!")


def a_hash_of_a_proof_is_another(files):
    hashes = files[names.proof_name(3)].split(b"\n")
    hashes[2] = base64.b64encode(bytes(32))
    files[names.proof_name(3)] = b"\n".join(hashes)


DAMAGES = {
    "a leaf": (
        {"leaves": "leaves/3.json was changed"},
        lambda f: changed(f, names.leaf_name(3), b'"salt":"chunk"', b'"salt":"chunl"'),
    ),
    "an unreadable proof": (
        {"leaves": "proofs/3.tlog-proof is not readable as an inclusion proof"},
        a_proof_is_flipped,
    ),
    "a proof of nothing": (
        {"leaves": "proofs/3.tlog-proof was changed"},
        a_hash_of_a_proof_is_another,
    ),
    "the checkpoint": (
        {"checkpoint": "checkpoint.txt: "},
        lambda f: changed(f, names.CHECKPOINT, b"\n8\n", b"\n9\n"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damage_is_one_accusation_and_what_rests_on_it_is_not_examined(damage):
    accused, spoil = DAMAGES[damage]
    files = Liar().files()
    spoil(files)
    found = judged(files)
    failed = {name: detail for name, (result, detail) in found.items() if result == "fail"}
    assert set(failed) == set(accused), found
    for step, reason in accused.items():
        assert reason in failed[step]
    for step in ("noise_log", "ledger", "epsilon"):
        assert found[step][0] == "not_examined"
        assert "the leaves did not verify" in found[step][1]


NOT_TRUSTED = {
    "an empty list": ((), "not on the list that you trust; the list may be older"),
    "a revoked key": ((replace(LISTED[0], revoked_at=NOW),), "was revoked"),
}


@pytest.mark.parametrize("case", NOT_TRUSTED)
def test_a_key_that_nobody_trusts_is_the_only_accusation(case):
    keys, reason = NOT_TRUSTED[case]
    found = judged(Liar().files(), keys=keys)
    assert {name for name, (result, _) in found.items() if result == "fail"} == {"issuer_key"}
    assert reason in found["issuer_key"][1]


def test_a_checkpoint_of_a_newer_key_says_that_the_list_may_be_old():
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    old = replace(LISTED[0], key_id=hashlib.sha256(other).hexdigest(), public_key=other)
    found = judged(Liar().files(), keys=(old,))
    for step in ("issuer_key", "checkpoint"):
        assert found[step][0] == "fail"
        assert "the list may be older than the key" in found[step][1]
