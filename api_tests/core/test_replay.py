"""Replay tells what truly ran; chunks tell whether the log was changed since."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.chunks import canonical_records, leaf, seal
from service.core.events import (
    NOTHING,
    Composed,
    EpochDpSgd,
    Gaussian,
    Repeated,
    StepwiseDpSgd,
    poisson,
)
from service.core.noise_log import Columns, StepRecord, columns, parse
from service.core.replay import (
    between,
    certain_part,
    departure,
    expanded,
    merged,
    replay,
    runs,
    step_count,
)

BASE = StepRecord(
    step=0,
    noise_multiplier=1.1,
    max_grad_norm=1.0,
    sampler="poisson",
    sampling_rate=0.01,
    expected_batch_size=600.0,
)


def poisson_log(steps, **changes):
    return [dataclasses.replace(BASE, step=i, **changes) for i in range(steps)]


def epoch_log(steps, *, size, sampler="shuffle", noise=1.1):
    return [
        dataclasses.replace(
            BASE,
            step=i,
            sampler=sampler,
            sampling_rate=1 / size,
            epoch=i // size,
            updates_per_epoch=size,
            noise_multiplier=noise,
        )
        for i in range(steps)
    ]


def million(steps=1_000_000):
    return Columns(
        step=np.arange(steps),
        noise_multiplier=np.full(steps, 1.1),
        max_grad_norm=np.ones(steps),
        sampler=np.zeros(steps, dtype=np.uint8),
        sampling_rate=np.full(steps, 0.01),
        expected_batch_size=np.full(steps, 600.0),
        epoch=np.full(steps, -1),
        updates_per_epoch=np.zeros(steps, dtype=np.int64),
        count_noise_stddev=np.zeros(steps),
    )


def test_equal_steps_collapse():
    assert replay(poisson_log(3000)) == poisson(
        sampling_rate=0.01, noise_multiplier=1.1, steps=3000
    )


def test_a_million_equal_steps_are_one_segment():
    assert replay(million()) == poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=1_000_000)


def test_one_step_in_a_million_with_less_noise_is_seen():
    log = million()
    log.noise_multiplier[654_321] = 1.0999
    event = replay(log)
    assert isinstance(event, StepwiseDpSgd)
    assert [s.steps for s in event.schedule] == [654_321, 1, 345_678]
    assert event.schedule[1].noise_multiplier == 1.0999
    planned = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=1_000_000)
    found = departure(event, planned=planned)
    assert found is not None
    assert (found.kind, found.step) == ("noise_multiplier", 654_321)


def test_nothing_recorded_is_the_event_that_touches_no_data():
    assert replay([]) == NOTHING
    assert certain_part([]) == NOTHING


def test_adaptive_clipping_is_replayed_with_its_count_noise():
    event = replay(poisson_log(3, count_noise_stddev=10.0))
    assert isinstance(event, StepwiseDpSgd)
    assert event.count_noise_stddev == 10.0


def test_a_change_of_clip_norm_alone_costs_nothing():
    log = [*poisson_log(3), dataclasses.replace(BASE, step=3, max_grad_norm=2.0)]
    assert replay(log) == poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=4)
    assert len(runs(log)) == 2


schedules = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.1, 0.2])),
    min_size=1,
    max_size=6,
)


@given(schedules)
def test_a_schedule_is_replayed_exactly(schedule):
    rows = [(sigma, q) for steps, sigma, q in schedule for _ in range(steps)]
    log = [
        dataclasses.replace(BASE, step=i, noise_multiplier=sigma, sampling_rate=q)
        for i, (sigma, q) in enumerate(rows)
    ]
    event = replay(log)
    assert isinstance(event, StepwiseDpSgd)
    again = [(s.noise_multiplier, s.sampling_rate) for s in event.schedule for _ in range(s.steps)]
    assert again == rows
    assert certain_part(log) == event
    assert replay(runs(log)) == event == replay(columns(log))


@pytest.mark.parametrize(("steps", "begun", "whole"), [(30, 3, 3), (21, 3, 2), (5, 1, 0)])
def test_an_epoch_that_has_begun_counts_whole_and_is_certain_only_when_done(steps, begun, whole):
    log = epoch_log(steps, size=10)
    event = replay(log)
    assert isinstance(event, EpochDpSgd)
    assert (event.epochs, event.updates_per_epoch) == (begun, 10)
    certain = certain_part(log)
    assert (certain.epochs if isinstance(certain, EpochDpSgd) else 0) == whole


def test_an_epoch_with_several_noise_multipliers_counts_at_the_smallest():
    log = epoch_log(20, size=10)
    log[13] = dataclasses.replace(log[13], noise_multiplier=0.7)
    event = replay(log)
    assert isinstance(event, Composed)
    assert [(p.epochs, p.noise_multiplier) for p in event.parts if isinstance(p, EpochDpSgd)] == [
        (1, 1.1),
        (1, 0.7),
    ]
    certain = certain_part(log)
    assert isinstance(certain, EpochDpSgd)
    assert (certain.epochs, certain.noise_multiplier) == (1, 1.1)


def test_more_steps_than_an_epoch_has_room_for_are_further_epochs():
    log = [dataclasses.replace(r, epoch=0) for r in epoch_log(25, size=10)]
    event = replay(log)
    assert isinstance(event, EpochDpSgd)
    assert event.epochs == 3
    assert certain_part(log) == NOTHING


def test_a_new_epoch_in_the_middle_of_another_is_charged_as_a_new_one():
    labels = [0] * 10 + [1] * 5 + [2] * 10
    log = [
        dataclasses.replace(r, epoch=e) for r, e in zip(epoch_log(25, size=10), labels, strict=True)
    ]
    event = replay(log)
    assert isinstance(event, EpochDpSgd)
    assert event.epochs == 3
    certain = certain_part(log)
    assert isinstance(certain, EpochDpSgd)
    assert certain.epochs == 2


def test_several_samplers_are_composed_in_order():
    tail = [dataclasses.replace(r, step=r.step + 10) for r in poisson_log(4)]
    event = replay([*epoch_log(10, size=10), *tail])
    assert isinstance(event, Composed)
    assert [type(p) for p in event.parts] == [EpochDpSgd, StepwiseDpSgd]


def test_a_schedule_longer_than_one_event_holds_is_split():
    log = million(150_000)
    log.noise_multiplier[:] = 1.0 + np.arange(150_000) * 1e-6
    event = replay(log)
    assert isinstance(event, Composed)
    assert step_count(event) == 150_000


def test_the_remainder_is_taken_from_the_declaration():
    event = replay(epoch_log(10, size=10), remainder="dropped")
    assert isinstance(event, EpochDpSgd)
    assert event.remainder == "dropped"


PLAN = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=100)


@pytest.mark.parametrize(
    ("log", "kind", "step"),
    [
        (poisson_log(100), None, 0),
        (poisson_log(60), None, 0),
        (poisson_log(100, noise_multiplier=1.2), None, 0),
        (poisson_log(100, sampling_rate=0.005), None, 0),
        (poisson_log(101), "steps", 100),
        (poisson_log(100, noise_multiplier=1.0), "noise_multiplier", 0),
        (poisson_log(100, sampling_rate=0.02), "sampling_rate", 0),
        (poisson_log(100, count_noise_stddev=5.0), "count_noise_stddev", 0),
        (epoch_log(100, size=100), "sampler", 0),
    ],
)
def test_a_departure_is_found_where_it_begins(log, kind, step):
    found = departure(replay(log), planned=PLAN)
    if kind is None:
        assert found is None
    else:
        assert found is not None
        assert (found.kind, found.step) == (kind, step)


def test_a_plan_of_parts_is_compared_step_by_step():
    plan = Repeated(
        of=Composed(
            parts=(PLAN, poisson(sampling_rate=0.02, noise_multiplier=2.0, steps=10)),
        ),
        times=2,
    )
    assert step_count(plan) == 220
    assert departure(plan, planned=plan) is None
    found = departure(replay(poisson_log(105)), planned=plan)
    assert found is not None
    assert (found.kind, found.step) == ("noise_multiplier", 100)


def test_a_plan_that_is_not_made_of_steps_cannot_be_compared():
    with pytest.raises(ValueError, match="Gaussian"):
        departure(PLAN, planned=Gaussian(noise_multiplier=1.0))


def chained(log, size):
    chunks, previous = [], None
    for start in range(0, len(log), size):
        chunk = seal(log[start : start + size], previous=previous)
        chunks.append(chunk)
        previous = chunk.link
    return chunks


LOG = [*poisson_log(7), *[dataclasses.replace(r, step=r.step + 7) for r in poisson_log(5)]]
PARTS = [LOG[:5], LOG[5:10], LOG[10:]]


def test_canonical_bytes_are_one_line_of_sorted_json_per_record():
    assert canonical_records(epoch_log(2, size=10)) == (
        b'{"epoch":0,"expected_batch_size":600,"max_grad_norm":1,"noise_multiplier":1.1,'
        b'"sampler":"shuffle","sampling_rate":0.1,"step":0,"updates_per_epoch":10}\n'
        b'{"epoch":0,"expected_batch_size":600,"max_grad_norm":1,"noise_multiplier":1.1,'
        b'"sampler":"shuffle","sampling_rate":0.1,"step":1,"updates_per_epoch":10}\n'
    )


@given(schedules)
def test_the_bytes_read_back_as_the_records(schedule):
    rows = [(sigma, q) for steps, sigma, q in schedule for _ in range(steps)]
    log = [
        dataclasses.replace(BASE, step=i, noise_multiplier=sigma, sampling_rate=q)
        for i, (sigma, q) in enumerate(rows)
    ]
    lines = [json.loads(line) for line in canonical_records(log).splitlines()]
    assert [u.record for u in parse(lines)] == log


def test_the_summaries_alone_replay_the_log():
    summaries = [run for chunk in chained(LOG, 5) for run in chunk.summary]
    assert replay(summaries) == replay(LOG)


def test_the_head_depends_on_every_record():
    heads = {
        chained([dataclasses.replace(r, **change) if r.step == 2 else r for r in LOG], 5)[-1].link
        for change in ({}, {"noise_multiplier": 1.2}, {"sampling_rate": 0.02})
    }
    assert len(heads) == 3


def test_a_leaf_shows_the_parameters_and_no_sealed_field():
    shown = leaf(chained(LOG, 5)[0])
    assert shown["summary"] == [
        {
            "steps": 5,
            "step": 0,
            "noise_multiplier": 1.1,
            "max_grad_norm": 1.0,
            "sampler": "poisson",
            "sampling_rate": 0.01,
            "expected_batch_size": 600.0,
        }
    ]


@given(
    noise=st.lists(st.sampled_from([1.0, 1.1]), min_size=1, max_size=40),
    size=st.sampled_from([None, 3, 7]),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    first=st.integers(0, 50),
    length=st.integers(0, 50),
)
def test_runs_found_piece_by_piece_are_those_of_the_whole(noise, size, cuts, first, length):
    log = poisson_log(len(noise)) if size is None else epoch_log(len(noise), size=size)
    log = [dataclasses.replace(r, noise_multiplier=s) for r, s in zip(log, noise, strict=True)]
    ends = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    pieces = [part for a, b in itertools.pairwise(ends) for part in runs(log[a:b])]
    assert merged(pieces) == runs(log)
    assert list(expanded(pieces)) == log
    inside = between(pieces, first_step=first, end_step=first + length)
    assert list(expanded(inside)) == log[first : first + length]
