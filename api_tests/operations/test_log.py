"""The Merkle log: a leaf with each effect, one order for all, and no way back."""

import json
import stat
import threading
from decimal import Decimal

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from api_tests.jobs import MECHANISM, OWNER, add_dataset
from service.core import merkle
from service.core.errors import Conflict, NotFound
from service.core.events import poisson
from service.db.migrations.run import migrate
from service.db.session import Database
from service.db.tables import LedgerEntry, LogEntry, LogHead, LogNode, SigningKey
from service.operations import accounts, datasets, keys, log, reservations, signing_keys
from service.signing import FileSigner, key_id_of, verifies


def entries(database):
    with database.read() as session:
        rows = session.scalars(select(LogEntry).order_by(LogEntry.index)).all()
        session.expunge_all()
        return rows


def head(database):
    with database.read() as session:
        return log.head(session)


def check_whole(database):
    """Indices without a gap, every hash right, and the root that of the definition."""
    rows, found = entries(database), head(database)
    assert [row.index for row in rows] == list(range(len(rows)))
    assert all(merkle.leaf_hash(row.leaf.encode()).hex() == row.leaf_hash for row in rows)
    assert found.frontier.size == len(rows)
    assert found.frontier.root == merkle.root([bytes.fromhex(row.leaf_hash) for row in rows])
    with database.read() as session:
        nodes = session.scalar(select(func.count()).select_from(LogNode))
    assert nodes == len(rows) - len(rows).bit_count() if rows else nodes == 0
    return rows


def reserve(database, dataset, steps=5):
    event = poisson(sampling_rate=0.01, noise_multiplier=8.0, steps=steps)
    with database.write() as session:
        return reservations.reserve(
            session, OWNER, dataset_ids=[dataset], event=event, expires_in_s=600
        ).id


def test_every_ledger_entry_has_a_leaf_that_says_the_same(database):
    dataset = add_dataset(database)
    reservation_id = reserve(database, dataset)
    with database.write() as session:
        granted = reservations.lease(session, OWNER, reservation_id=reservation_id, steps=3)
        token = granted.grant.fencing_token
    with database.write() as session:
        reservations.settle(
            session, OWNER, reservation_id=reservation_id, fencing_token=token, executed=None
        )
    with database.write() as session:
        reservations.release(session, OWNER, reservation_id=reserve_again(session, dataset))
    rows = check_whole(database)
    kinds = [row.kind for row in rows]
    assert kinds == ["account", "reserve", "lease", "settle", "reserve", "release"]
    with database.read() as session:
        ledger = session.scalars(select(LedgerEntry).order_by(LedgerEntry.sequence)).all()
        session.expunge_all()
    bodies = [json.loads(row.leaf)["body"] for row in rows[1:]]
    for entry, body in zip(ledger, bodies, strict=True):
        assert body["entry_id"] == entry.id
        assert body["posted_change"] == [str(amount) for amount in entry.posted_change]
        assert body["pending_change"] == [str(amount) for amount in entry.pending_change]
    assert bodies[1]["steps"] == {"first": 0, "end": 3}


def reserve_again(session, dataset):
    event = poisson(sampling_rate=0.01, noise_multiplier=8.0, steps=1)
    return reservations.reserve(
        session, OWNER, dataset_ids=[dataset], event=event, expires_in_s=600
    ).id


def test_keys_leave_leaves_without_anything_of_their_secret(database):
    with database.write() as session:
        fresh = keys.create_key(
            session, OWNER, name="laptop", scopes=["jobs:read"], expires_at=None
        )
        key_id, token, stored = fresh.id, fresh.token, fresh.row.secret_hash
    with database.write() as session:
        keys.rotate_key(session, OWNER, key_id=key_id)
    for _ in range(2):
        with database.write() as session:
            keys.revoke_key(session, OWNER, key_id=key_id)
    rows = check_whole(database)
    actions = [json.loads(row.leaf)["body"]["action"] for row in rows]
    assert actions == ["created", "rotated", "revoked"]
    whole = "".join(row.leaf for row in rows)
    assert token[-43:] not in whole
    assert stored not in whole


def test_what_is_rolled_back_or_tried_out_leaves_nothing(database):
    add_dataset(database)
    before = head(database)

    def fails():
        with database.write() as session:
            log.append(session, "job", {"x": 1}, tenant_id="t", subject_id="job_1")
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with database.write(keep=False) as session:
        log.append(session, "job", {"x": 1}, tenant_id="t", subject_id="job_1")
    assert head(database) == before
    check_whole(database)


def test_equal_bodies_have_different_hashes(database):
    with database.write() as session:
        for _ in range(2):
            log.append(session, "job", {"x": 1}, tenant_id="t", subject_id="job_1")
    first, second = entries(database)
    assert first.leaf_hash != second.leaf_hash


def test_the_last_leaf_about_a_subject_is_known_before_it_is_committed(database):
    with database.write() as session:
        assert log.last_hash(session, subject_id="job_1", kind="chunk") is None
        made = log.append(session, "chunk", {"x": 1}, tenant_id="t", subject_id="job_1")
        log.append(session, "chunk", {"x": 1}, tenant_id="t", subject_id="job_2")
        assert log.last_hash(session, subject_id="job_1", kind="chunk") == made.hash.hex()
    with database.read() as session:
        assert log.last_hash(session, subject_id="job_1", kind="chunk") == made.hash.hex()


def test_many_writers_make_one_log_without_gaps(database):
    owned = [add_dataset_of_its_own(database, n) for n in range(4)]
    failures = []

    def work(dataset):
        try:
            for _ in range(6):
                reserve(database, dataset)
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(d,)) for d in owned for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(check_whole(database)) == 4 + 4 * 2 * 6


def add_dataset_of_its_own(database, number):
    with database.write() as session:
        return datasets.create_dataset(
            session,
            OWNER,
            name=f"data {number}",
            privacy_unit="record",
            max_records_per_unit=1,
            record_count=100,
            record_count_is_public=True,
            source=None,
            fingerprint=None,
            allowed_sources=[],
            terms=accounts.make_terms(
                epsilon=Decimal(8),
                delta=Decimal("1e-5"),
                neighboring="add_or_remove_one",
                privacy_unit="record",
                records_per_unit=1,
                composition="renyi",
                planned=None,
                orders=None,
                weights=None,
            ),
        ).id


def test_old_proofs_stay_true_while_the_log_grows(database):
    points = []
    for number in range(20):
        with database.write() as session:
            log.append(session, "job", {"n": number}, tenant_id="t", subject_id="job_1")
        points.append(head(database).checkpoint)
    newest = points[-1]
    with database.read() as session:
        for point in points:
            _, proof = log.consistency_proof(session, old=point.size, new=newest.size)
            assert merkle.verify_consistency(
                point.size,
                new=newest.size,
                old_root=point.root,
                new_root=newest.root,
                proof=proof,
            )
            assert log.root_at(session, size=point.size) == point.root


@pytest.mark.parametrize(
    "statement",
    [
        "update log_entries set leaf = '{}'",
        "delete from log_entries",
        "update log_nodes set hash = ''",
        "update log_head set size = 0",
        "update log_head set size = size + 1, origin = 'another'",
        "delete from log_head",
    ],
)
def test_the_log_refuses_to_be_rewritten(database, statement):
    add_dataset(database)
    reserve(database, add_dataset_of_its_own(database, 1))
    with pytest.raises(DBAPIError), database.write() as session:
        session.execute(text(statement))
    check_whole(database)


def test_two_logs_have_two_names(database, tmp_path):
    other = Database(f"sqlite:///{tmp_path / 'other.db'}")
    migrate(other)
    assert head(other).origin != head(database).origin
    other.close()


@pytest.fixture
def signer(tmp_path):
    return FileSigner(tmp_path / "signing.key")


def test_the_signing_key_is_its_owner_s_alone_and_made_once(signer, tmp_path):
    first = signer.public_key()
    assert FileSigner(tmp_path / "signing.key").public_key() == first
    assert stat.S_IMODE((tmp_path / "signing.key").stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir() if "signing" in p.name) == ["signing.key"]
    (tmp_path / "signing.key").write_bytes(b"short")
    with pytest.raises(OSError, match="not an Ed25519 seed"):
        signer.public_key()


def test_a_rotated_key_stays_on_the_list_and_what_it_signed_stays_good(database, signer):
    old = signer.sign(b"message")
    with database.write() as session:
        assert signing_keys.register(session, signer.public_key()) == old.key_id
    with database.write() as session:
        new = signing_keys.rotate(session, signer)
    assert new == key_id_of(signer.public_key()) != old.key_id
    with database.read() as session:
        listed = {key.key_id: key for key in signing_keys.known(session, signer)}
    assert set(listed) == {old.key_id, new}
    assert listed[old.key_id].retired_at is not None
    assert listed[new].retired_at is None
    assert verifies(listed[old.key_id].public_key, signature=old.signature, message=b"message")
    assert not verifies(listed[new].public_key, signature=old.signature, message=b"message")
    actions = [json.loads(row.leaf)["body"]["action"] for row in check_whole(database)]
    assert actions == ["created", "retired", "created"]


def test_a_revoked_key_signs_nothing_until_it_is_rotated(database, signer):
    with database.write() as session:
        key_id = signing_keys.register(session, signer.public_key())
    for _ in range(2):
        with database.write() as session:
            signing_keys.revoke(session, key_id=key_id, reason="lost")
    with database.read() as session:
        row = session.get_one(SigningKey, key_id)
        assert row.revocation_reason == "lost"
        assert session.execute(select(LogHead.size)).scalar_one() == 2
    with pytest.raises(Conflict), database.write() as session:
        signing_keys.register(session, signer.public_key())
    with pytest.raises(NotFound), database.write() as session:
        signing_keys.revoke(session, key_id="0" * 64, reason="x")
    with database.write() as session:
        assert signing_keys.rotate(session, signer) != key_id


def test_the_mechanism_of_a_reservation_is_in_its_leaf(database):
    reserve(database, add_dataset(database), steps=7)
    body = json.loads(entries(database)[-1].leaf)["body"]
    assert body["mechanism"]["sampler"] == MECHANISM["sampler"]
