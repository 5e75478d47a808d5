"""Job states move only as the table says; a training spec that exists can be trained."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import jobs
from service.core.datasets import BUILTIN_DATASETS, builtin_dataset, split_order
from service.core.errors import Conflict, InvalidInput
from service.core.events import EpochDpSgd, Gaussian, Segment, StepwiseDpSgd, poisson
from service.core.jobs import MOVES, TERMINAL, JobState, Optimizer, TrainingSpec

STATES = get_args(JobState)


def spec(**changes):
    fields = {
        "dataset_source": "digits",
        "record_count": 1437,
        "model": "mlp",
        "optimizer": Optimizer(learning_rate=1.0),
        "mechanism": poisson(sampling_rate=0.1, noise_multiplier=1.5, steps=10),
        "max_grad_norm": 1.0,
        "expected_batch_size": 143.7,
        "neighboring": "add_or_remove_one",
    }
    return TrainingSpec(**(fields | changes))


@pytest.mark.parametrize("old", STATES)
@pytest.mark.parametrize("new", STATES)
def test_a_move_outside_the_table_is_refused(old, new):
    if new in MOVES[old]:
        jobs.check_move(old, new)
        return
    with pytest.raises(Conflict) as caught:
        jobs.check_move(old, new)
    assert caught.value.code == "INVALID_STATE"
    assert caught.value.fields == {"state": old, "requested": new}


def test_terminal_states_are_exactly_those_that_never_change():
    assert {state for state in STATES if not MOVES[state]} == set(TERMINAL)


def test_a_running_job_is_cancelled_only_by_way_of_cancelling():
    assert "cancelled" not in MOVES["running"]
    assert "cancelled" in MOVES["cancelling"]


def test_every_state_can_reach_an_end():
    reached = set(TERMINAL)
    while grown := {s for s in STATES if s not in reached and MOVES[s] & reached}:
        reached |= grown
    assert reached == set(STATES)


@given(
    q=st.floats(1e-6, 1.0),
    sigma=st.floats(0.1, 100.0),
    steps=st.integers(1, 10_000),
    seed=st.none() | st.integers(0, jobs.MAX_SEED),
)
def test_a_spec_survives_its_json(q, sigma, steps, seed):
    before = spec(
        mechanism=poisson(sampling_rate=q, noise_multiplier=sigma, steps=steps),
        seed_policy="os_entropy" if seed is None else "reproducible",
        seed=seed,
        model_options={"hidden": 7},
    )
    assert TrainingSpec.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_a_schedule_of_segments_survives_its_json():
    schedule = StepwiseDpSgd(
        sampler="poisson",
        schedule=(
            Segment(steps=3, noise_multiplier=1.0, sampling_rate=0.1),
            Segment(steps=4, noise_multiplier=2.0, sampling_rate=0.2),
        ),
    )
    before = spec(mechanism=schedule)
    assert TrainingSpec.from_json(before.to_json()) == before
    assert before.total_steps == 7


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"dataset_source": "cifar10"}, "/dataset_id"),
        ({"record_count": 1438}, "/dataset_id"),
        ({"model": "transformer"}, "/training/model"),
        ({"model_options": {"depth": 2}}, "/training/model_options/depth"),
        ({"model_options": {"hidden": 0}}, "/training/model_options/hidden"),
        ({"model_options": {"hidden": True}}, "/training/model_options/hidden"),
        ({"max_grad_norm": 0.0}, "/privacy/max_grad_norm"),
        ({"max_grad_norm": NAN}, "/privacy/max_grad_norm"),
        ({"expected_batch_size": 0.0}, "/training/expected_batch_size"),
        ({"neighboring": "add_one"}, "/privacy/neighboring"),
        ({"device": "tpu"}, "/training/device"),
        ({"seed": 3}, "/seed"),
        ({"seed_policy": "reproducible"}, "/seed"),
        ({"seed_policy": "reproducible", "seed": 2**53}, "/seed"),
        ({"seed_policy": "sometimes"}, "/seed_policy"),
        ({"max_runtime_s": float("inf")}, "/limits/max_runtime_s"),
        ({"lease_steps": 0}, "/limits/lease_steps"),
        ({"lease_steps": 4097}, "/limits/lease_steps"),
        (
            {"mechanism": poisson(sampling_rate=0.1, noise_multiplier=0.0, steps=1)},
            "/privacy/mechanism/noise_multiplier",
        ),
        (
            {"mechanism": poisson(sampling_rate=0.1, noise_multiplier=1.0, steps=1_000_001)},
            "/privacy/mechanism/steps",
        ),
        (
            {
                "mechanism": StepwiseDpSgd(
                    sampler="poisson",
                    schedule=(Segment(steps=1, noise_multiplier=1.0, sampling_rate=0.1),),
                    count_noise_stddev=5.0,
                )
            },
            "/privacy/adaptive_clipping",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_and_names_its_field(changes, pointer):
    with pytest.raises(InvalidInput) as caught:
        spec(**changes)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"learning_rate": 0.0}, "/training/optimizer/learning_rate"),
        ({"learning_rate": 1.0, "name": "lion"}, "/training/optimizer/name"),
        ({"learning_rate": 1.0, "momentum": 1.0}, "/training/optimizer/momentum"),
        ({"learning_rate": 1.0, "weight_decay": -0.1}, "/training/optimizer/weight_decay"),
        (
            {"learning_rate": 1.0, "name": "adam", "momentum": 0.9},
            "/training/optimizer/momentum",
        ),
    ],
)
def test_an_optimizer_outside_its_limits_names_its_field(fields, pointer):
    with pytest.raises(InvalidInput) as caught:
        Optimizer(**fields)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(noise_multiplier=1.0),
        EpochDpSgd(sampler="shuffle", updates_per_epoch=10, epochs=1, noise_multiplier=1.0),
        EpochDpSgd(sampler="balls_in_bins", updates_per_epoch=10, epochs=1, noise_multiplier=1.0),
    ],
)
def test_a_mechanism_that_the_trainer_cannot_execute_is_refused(mechanism):
    with pytest.raises(InvalidInput) as caught:
        jobs.trainable(mechanism)
    assert caught.value.code == "UNSUPPORTED"


def test_every_recipe_has_defaults_that_make_a_valid_spec():
    for preset in jobs.recipes()["presets"]:
        source, model = preset["source"], preset["model"]
        defaults = jobs.defaults_for(source, model)
        whole = spec(
            dataset_source=source,
            record_count=builtin_dataset(source).record_count,
            model=model,
            model_options=defaults.model_options,
            optimizer=defaults.optimizer,
            mechanism=poisson(
                sampling_rate=defaults.sampling_rate, noise_multiplier=1.0, steps=defaults.steps
            ),
            max_grad_norm=defaults.max_grad_norm,
            expected_batch_size=defaults.expected_batch_size,
            lease_steps=defaults.lease_steps,
        )
        assert whole.model_options == defaults.model_options


def test_a_smaller_epsilon_takes_smaller_steps_and_changes_nothing_that_is_charged():
    tight, loose = (
        jobs.defaults_for("digits", "mlp", target_epsilon=epsilon) for epsilon in (1.0, 8.0)
    )
    assert tight.optimizer.learning_rate < loose.optimizer.learning_rate
    assert (tight.sampling_rate, tight.steps, tight.max_grad_norm) == (
        loose.sampling_rate,
        loose.steps,
        loose.max_grad_norm,
    )


def test_every_dataset_has_a_preset_for_every_model():
    pairs = {(p["source"], p["model"]) for p in jobs.recipes()["presets"]}
    assert pairs == {(d, m) for d in BUILTIN_DATASETS for m in jobs.MODELS}


def test_recipes_are_plain_json():
    assert json.loads(json.dumps(jobs.recipes())) == jobs.recipes()


@given(st.integers(1, 1_000_000))
def test_a_lease_is_never_longer_than_the_limit(steps):
    assert 1 <= jobs.default_lease_steps(steps) <= jobs.MAX_LEASE_STEPS


def test_an_unknown_builtin_is_refused_by_name():
    with pytest.raises(InvalidInput):
        builtin_dataset("mnist")


def test_a_split_is_a_permutation_that_never_changes():
    assert split_order("digits", 8) == [5, 1, 4, 0, 2, 7, 3, 6]
