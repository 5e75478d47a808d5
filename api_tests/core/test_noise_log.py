"""Uploaded records: the first bad line is named, and the log stays contiguous."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import Conflict, InvalidInput
from service.core.noise_log import (
    SequenceGap,
    StepRecord,
    accept,
    columns,
    is_contiguous,
    parse,
    records,
    times_go_forward,
)

LINE = {
    "step": 0,
    "noise_multiplier": 1.1,
    "max_grad_norm": 1.0,
    "sampling_rate": 0.01,
    "sampler": "poisson",
    "expected_batch_size": 600,
}
EPOCH_LINE = {
    "step": 0,
    "noise_multiplier": 1.1,
    "max_grad_norm": 1,
    "sampler": "shuffle",
    "expected_batch_size": 600,
    "epoch": 0,
    "updates_per_epoch": 100,
}


def lines(first, end):
    return [LINE | {"step": step} for step in range(first, end)]


def test_a_line_becomes_a_record_and_keeps_its_sealed_part_apart():
    (upload,) = parse(
        [LINE | {"at": "2026-01-02T03:04:05Z", "sealed": {"realized_batch_size": 597}}]
    )
    assert upload.record == StepRecord(
        step=0,
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        sampler="poisson",
        sampling_rate=0.01,
        expected_batch_size=600.0,
    )
    assert upload.at == "2026-01-02T03:04:05Z"
    assert upload.sealed == {"realized_batch_size": 597}


def test_the_rate_of_an_epoch_sampler_is_one_over_its_updates():
    (upload,) = parse([EPOCH_LINE])
    assert upload.record.sampling_rate == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"noise_multiplier": "1.1"}, "/1/noise_multiplier", "WRONG_TYPE"),
        ({"noise_multiplier": True}, "/1/noise_multiplier", "WRONG_TYPE"),
        ({"step": 1.0}, "/1/step", "WRONG_TYPE"),
        ({"noise_multiplier": -1}, "/1/noise_multiplier", "OUT_OF_RANGE"),
        ({"noise_multiplier": float("nan")}, "/1/noise_multiplier", "OUT_OF_RANGE"),
        ({"noise_multiplier": 10**400}, "/1/noise_multiplier", "OUT_OF_RANGE"),
        ({"sampling_rate": 0}, "/1/sampling_rate", "OUT_OF_RANGE"),
        ({"max_grad_norm": float("inf")}, "/1/max_grad_norm", "OUT_OF_RANGE"),
        ({"sampler": "poison"}, "/1/sampler", "OUT_OF_RANGE"),
        ({"sampler": 3}, "/1/sampler", "WRONG_TYPE"),
        ({"sampler": "shuffle"}, "/1/epoch", "MISSING_FIELD"),
        ({"sampler": "full_batch"}, "/1/sampling_rate", "INCONSISTENT"),
        ({"updates_per_epoch": 100}, "/1/updates_per_epoch", "INCONSISTENT"),
        ({"sigma": 1.1}, "/1/sigma", "UNKNOWN_FIELD"),
        ({"step": None}, "/1/step", "MISSING_FIELD"),
        ({"at": "yesterday"}, "/1/at", "OUT_OF_RANGE"),
        ({"at": "2026-01-02T03:04:05"}, "/1/at", "OUT_OF_RANGE"),
        ({"at": 5}, "/1/at", "WRONG_TYPE"),
        ({"sealed": []}, "/1/sealed", "WRONG_TYPE"),
        ({"sealed": {"noise_norm": -1.0}}, "/1/sealed/noise_norm", "OUT_OF_RANGE"),
        ({"sealed": {"loss": 10**400}}, "/1/sealed/loss", "OUT_OF_RANGE"),
        ({"sealed": {"noise_norm": "x"}}, "/1/sealed/noise_norm", "OUT_OF_RANGE"),
    ],
)
def test_the_first_bad_line_is_named_with_its_field(change, pointer, code):
    with pytest.raises(InvalidInput) as caught:
        parse([LINE, LINE | {"step": 1} | change, {"worse": 1}])
    assert (caught.value.pointer, caught.value.code) == (pointer, code)


def test_a_line_that_is_no_object_is_refused():
    with pytest.raises(InvalidInput) as caught:
        parse([LINE, 5])
    assert (caught.value.pointer, caught.value.code) == ("/1", "WRONG_TYPE")


def test_an_error_text_never_shows_a_sealed_value():
    with pytest.raises(InvalidInput) as caught:
        parse([LINE | {"sealed": {"realized_batch_size": -123456789}}])
    assert "123456789" not in caught.value.message


def test_the_next_steps_are_accepted():
    accepted = accept(parse(lines(5, 8)), next_step=5)
    assert [u.record.step for u in accepted.fresh] == [5, 6, 7]
    assert (accepted.duplicates, accepted.next_step) == (0, 8)


def test_steps_sent_again_are_duplicates():
    stored = [u.record for u in parse(lines(3, 6))]
    accepted = accept(parse(lines(3, 8)), next_step=6, stored=stored)
    assert [u.record.step for u in accepted.fresh] == [6, 7]
    assert (accepted.duplicates, accepted.next_step) == (3, 8)


def test_an_upload_of_duplicates_alone_does_not_move_the_log_back():
    stored = [u.record for u in parse(lines(0, 2))]
    assert accept(parse(lines(0, 2)), next_step=9, stored=stored).next_step == 9


def test_a_recorded_step_never_changes():
    stored = [u.record for u in parse(lines(3, 6))]
    changed = [*lines(3, 5), LINE | {"step": 5, "noise_multiplier": 0.5}]
    with pytest.raises(Conflict) as caught:
        accept(parse(changed), next_step=6, stored=stored)
    assert caught.value.code == "STEP_ALREADY_RECORDED"
    assert caught.value.fields["step"] == 5


@pytest.mark.parametrize(
    ("steps", "next_step", "expected"),
    [([1, 2], 0, 0), ([0, 2], 0, 1), ([0, 0], 0, 1), ([4, 3], 4, 5), ([3, 5], 5, 4)],
)
def test_a_gap_or_a_repeat_names_the_step_that_comes_next(steps, next_step, expected):
    uploads = parse([LINE | {"step": step} for step in steps])
    with pytest.raises(SequenceGap) as caught:
        accept(uploads, next_step=next_step, stored=[u.record for u in uploads])
    assert caught.value.code == "SEQUENCE_GAP"
    assert caught.value.fields["expected_step"] == expected


def test_an_empty_upload_changes_nothing():
    accepted = accept((), next_step=4)
    assert (accepted.fresh, accepted.duplicates, accepted.next_step) == ((), 0, 4)


any_record = st.builds(
    StepRecord,
    step=st.integers(0, 10**9 - 1),
    noise_multiplier=st.floats(0, 1e4),
    max_grad_norm=st.floats(1e-6, 1e6),
    sampler=st.just("poisson"),
    sampling_rate=st.floats(1e-9, 1),
    expected_batch_size=st.floats(1e-3, 1e6),
    epoch=st.none() | st.integers(0, 10),
    count_noise_stddev=st.none() | st.floats(0.1, 100),
) | st.builds(
    StepRecord,
    step=st.integers(0, 10**9 - 1),
    noise_multiplier=st.floats(0, 1e4),
    max_grad_norm=st.floats(1e-6, 1e6),
    sampler=st.sampled_from(["shuffle", "balls_in_bins"]),
    sampling_rate=st.floats(1e-9, 1),
    expected_batch_size=st.floats(1e-3, 1e6),
    epoch=st.integers(0, 10),
    updates_per_epoch=st.integers(1, 1000),
)


@given(st.lists(any_record, max_size=5))
def test_records_survive_their_columns(some):
    assert records(columns(some)) == tuple(some)


def test_contiguous_means_every_step_once():
    rows = [u.record for u in parse(lines(0, 4))]
    assert is_contiguous(columns(rows))
    assert not is_contiguous(columns([rows[0], rows[2]]))
    assert not is_contiguous(columns([rows[0], rows[0], rows[1]]))


def test_a_clock_that_goes_back_is_found_across_offsets():
    forward = ["2026-01-02T03:00:00Z", None, "2026-01-02T05:00:00+02:00", "2026-01-02T03:00:01Z"]
    assert times_go_forward(forward) is True
    assert times_go_forward([*forward, "2026-01-02T04:00:00+01:30"]) is False
    assert times_go_forward(["2026-01-02T03:00:00Z", None]) is None
