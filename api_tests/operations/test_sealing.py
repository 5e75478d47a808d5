"""Encryption at rest, and chunks of the noise log as objects."""

import io
import secrets
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service import log_chunks
from service.core.noise_log import StepRecord, Upload
from service.objects import FolderStore
from service.sealing import FileSealer


@pytest.fixture
def sealer(tmp_path):
    return FileSealer(tmp_path / "key")


def test_what_was_sealed_opens_in_its_place_alone(sealer):
    sealed = sealer.seal(b"secret", place="job_1/0")
    assert b"secret" not in sealed
    assert sealer.open(sealed, place="job_1/0") == b"secret"
    with pytest.raises(OSError, match="damaged"):
        sealer.open(sealed, place="job_2/0")


@pytest.mark.parametrize("index", [0, 9, 25, -1])
def test_a_changed_byte_is_noticed(sealer, index):
    sealed = bytearray(sealer.seal(b"secret", place="p"))
    sealed[index] ^= 1
    with pytest.raises(OSError, match="damaged"):
        sealer.open(bytes(sealed), place="p")


@pytest.mark.parametrize("length", [0, 7, 8, 19, 20, 30])
def test_a_cut_object_is_noticed(sealer, length):
    with pytest.raises(OSError, match="damaged"):
        sealer.open(sealer.seal(b"secret", place="p")[:length], place="p")


def test_another_key_opens_nothing(sealer, tmp_path):
    sealed = sealer.seal(b"secret", place="p")
    with pytest.raises(OSError, match="damaged"):
        FileSealer(tmp_path / "other").open(sealed, place="p")


def test_sealing_twice_gives_two_texts(sealer):
    assert sealer.seal(b"secret", place="p") != sealer.seal(b"secret", place="p")


def test_one_key_wins_when_many_begin_at_once(tmp_path):
    path = tmp_path / "deep" / "key"
    with ThreadPoolExecutor(8) as pool:
        sealers = list(pool.map(lambda _: FileSealer(path), range(16)))
    sealed = sealers[0].seal(b"secret", place="p")
    assert {s.open(sealed, place="p") for s in sealers} == {b"secret"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["key"]


def test_a_file_that_is_no_key_is_refused(tmp_path):
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(OSError, match="not a key"):
        FileSealer(tmp_path / "key")


def uploads(first, noise):
    return [
        Upload(
            record=StepRecord(
                step=first + i,
                noise_multiplier=sigma,
                max_grad_norm=1.0,
                sampler="poisson",
                sampling_rate=0.1,
                expected_batch_size=6.5,
            ),
            at="2030-01-01T00:00:00Z",
            sealed={"noise_norm": secrets.randbelow(10**6) / 7},
        )
        for i, sigma in enumerate(noise)
    ]


@settings(deadline=None, max_examples=40)  # each example writes to disk
@given(
    first=st.integers(0, 10**9 - 50),
    noise=st.lists(st.floats(1e-300, 1e4), min_size=1, max_size=40),
)
def test_a_stored_chunk_gives_its_records_back_to_the_bit(tmp_path_factory, first, noise):
    root = tmp_path_factory.mktemp("store")
    given_ = uploads(first, noise)
    store, sealer = FolderStore(root), FileSealer(root / "key")
    chunk = log_chunks.store(given_, subject_id="job_1", objects=store, sealer=sealer)
    assert (chunk.first_step, chunk.end_step) == (first, first + len(noise))
    back = log_chunks.records_of(store, chunk.released_object)
    assert back == tuple(upload.record for upload in given_)
    assert chunk.sealed_object is not None
    rows = log_chunks.sealed_lines(
        store, chunk.sealed_object, subject_id="job_1", first_step=first, sealer=sealer
    )
    wanted = [upload.sealed["noise_norm"] for upload in given_ if upload.sealed]
    assert [row["sealed.noise_norm"] for row in rows] == wanted


def test_records_without_sealed_parts_make_no_sealed_object(tmp_path):
    plain = [Upload(record=u.record) for u in uploads(0, [1.0, 2.0])]
    store, sealer = FolderStore(tmp_path), FileSealer(tmp_path / "key")
    chunk = log_chunks.store(plain, subject_id="job_1", objects=store, sealer=sealer)
    assert chunk.sealed_object is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(deadline=None, max_examples=60)  # each example writes to disk
@given(measured=st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=5), min_size=1))
def test_whatever_a_trainer_measured_is_sealed_and_comes_back(tmp_path_factory, measured):
    root = tmp_path_factory.mktemp("store")
    store, sealer = FolderStore(root), FileSealer(root / "key")
    given_ = [
        Upload(record=u.record, at=u.at, sealed=one)
        for u, one in zip(uploads(0, [1.0] * len(measured)), measured, strict=True)
    ]
    wanted = [{k: v for k, v in one.items() if v is not None} for one in measured]
    chunk = log_chunks.store(given_, subject_id="run_1", objects=store, sealer=sealer)
    stored = log_chunks.SealedPart(first_step=0, end_step=len(given_), object=chunk.sealed_object)
    waiting = log_chunks.SealedPart(
        first_step=0,
        end_step=len(given_),
        object=None,
        blob=log_chunks.hide(given_, subject_id="run_1", sealer=sealer),
    )
    for part in (stored, waiting):
        lines = log_chunks.sealed_log(store, [part], subject_id="run_1", sealer=sealer)
        back = list(lines)
        assert [line["step"] for line in back] == list(range(len(given_)))
        assert [line["sealed"] for line in back] == wanted
    records = [u.record for u in given_]
    assert log_chunks.unhide(waiting.blob, records, subject_id="run_1", sealer=sealer) == tuple(
        given_
    )


def test_many_names_of_measures_make_no_wide_table(tmp_path):
    store, sealer = FolderStore(tmp_path), FileSealer(tmp_path / "key")
    given_ = [
        Upload(record=u.record, sealed={f"{i}.{j}": j for j in range(20)})
        for i, u in enumerate(uploads(0, [1.0] * 30))
    ]
    chunk = log_chunks.store(given_, subject_id="run_1", objects=store, sealer=sealer)
    part = log_chunks.SealedPart(first_step=0, end_step=30, object=chunk.sealed_object)
    back = log_chunks.sealed_log(store, [part], subject_id="run_1", sealer=sealer)
    assert [line["sealed"] for line in back] == [dict(u.sealed or {}) for u in given_]
    data = sealer.open(store.get(chunk.sealed_object or ""), place="run_1/0")
    assert pq.read_schema(io.BytesIO(data)).names == ["step", "at", "all"]


def test_the_tail_of_one_run_does_not_open_for_another(tmp_path):
    sealer = FileSealer(tmp_path / "key")
    given_ = uploads(0, [1.0, 2.0])
    blob = log_chunks.hide(given_, subject_id="run_1", sealer=sealer)
    records = [u.record for u in given_]
    with pytest.raises(OSError, match="damaged"):
        log_chunks.unhide(blob, records, subject_id="run_2", sealer=sealer)
    with pytest.raises(OSError, match="damaged"):
        log_chunks.unhide(blob, records[:1], subject_id="run_1", sealer=sealer)


def test_a_damaged_object_is_refused(tmp_path):
    store, sealer = FolderStore(tmp_path), FileSealer(tmp_path / "key")
    chunk = log_chunks.store(uploads(0, [1.0]), subject_id="job_1", objects=store, sealer=sealer)
    digest = chunk.released_object
    path = tmp_path / digest[:2] / digest[2:]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(OSError, match="damaged"):
        log_chunks.records_of(store, digest)
