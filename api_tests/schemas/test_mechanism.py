"""The mechanism JSON: every form becomes its event and back; every refusal names its field."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.core import events
from service.core.errors import InvalidInput
from service.schemas.base import Wire
from service.schemas.mechanism import (
    Compose,
    DpSgd,
    Mechanism,
    MechanismWithoutNoise,
    MechanismWithoutSteps,
    NoisyMechanism,
    from_core,
)

POISSON = {
    "type": "dp_sgd",
    "sampler": "poisson",
    "sampling_rate": 0.01,
    "noise_multiplier": 1.1,
    "steps": 3000,
}
SHUFFLE = {
    "type": "dp_sgd",
    "sampler": "shuffle",
    "updates_per_epoch": 100,
    "epochs": 30,
    "noise_multiplier": 1.1,
}


class Body(Wire):
    mechanism: Mechanism


class NoisyBody(Wire):
    mechanism: NoisyMechanism


class NoiseQuestion(Wire):
    mechanism: MechanismWithoutNoise


class StepsQuestion(Wire):
    mechanism: MechanismWithoutSteps


def event_of(mechanism, model: type[Any] = Body):
    return model.model_validate({"mechanism": mechanism}).mechanism.to_core()


def refusals(mechanism, model: type[Any] = Body):
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"mechanism": mechanism})
    return [
        (e["type"], "/" + "/".join(str(p) for p in e["loc"]))
        for e in caught.value.errors(include_url=False)
    ]


def without(mechanism, *names):
    return {name: value for name, value in mechanism.items() if name not in names}


def nested(depth):
    mechanism = POISSON
    for _ in range(depth - 1):
        mechanism = {"type": "repeat", "of": mechanism, "times": 2}
    return mechanism


counts = st.integers(1, 1000)
noises = st.floats(0.0, 1e4)
rates = st.floats(1e-6, 1.0)
segments = st.builds(
    events.Segment, steps=counts, noise_multiplier=noises, sampling_rate=rates
).map(lambda s: (s,)) | st.lists(
    st.builds(events.Segment, steps=counts, noise_multiplier=noises, sampling_rate=rates),
    min_size=2,
    max_size=4,
).map(tuple)
leaves = (
    st.builds(
        events.StepwiseDpSgd,
        sampler=st.just("poisson"),
        schedule=segments,
        count_noise_stddev=st.none() | st.floats(0.1, 100),
    )
    | st.builds(
        events.EpochDpSgd,
        sampler=st.sampled_from(["shuffle", "balls_in_bins"]),
        updates_per_epoch=counts,
        epochs=counts,
        noise_multiplier=noises,
        remainder=st.sampled_from([None, "dropped", "kept"]),
    )
    | st.builds(events.Gaussian, noise_multiplier=noises, count=counts)
    | st.builds(events.Laplace, noise_multiplier=noises, count=counts)
    | st.builds(events.DiscreteGaussian, noise_multiplier=noises, count=counts)
    | st.builds(events.RandomizedResponse, epsilon=st.floats(1e-3, 10), count=counts)
    | st.builds(events.ApproximateDp, epsilon=st.floats(1e-3, 10), delta=st.floats(0, 0.5))
    | st.builds(events.Zcdp, rho=st.floats(1e-6, 10), count=counts)
)
any_event = st.recursive(
    leaves,
    lambda inner: (
        st.builds(events.Composed, parts=st.lists(inner, max_size=3).map(tuple))
        | st.builds(events.Repeated, of=inner, times=counts)
    ),
    max_leaves=6,
)


@given(any_event)
def test_an_event_survives_the_wire(event):
    assert from_core(event).to_core() == event


@given(any_event)
def test_an_event_survives_the_json_text(event):
    text = Body(mechanism=from_core(event)).model_dump_json()
    assert Body.model_validate_json(text).mechanism.to_core() == event


def test_json_integers_are_numbers():
    assert event_of(POISSON | {"noise_multiplier": 2, "sampling_rate": 1}) == events.poisson(
        sampling_rate=1.0, noise_multiplier=2.0, steps=3000
    )


def test_full_batch_needs_no_sampling_rate():
    given_out = without(POISSON, "sampling_rate") | {"sampler": "full_batch"}
    assert event_of(given_out) == event_of(given_out | {"sampling_rate": 1})


def test_a_schedule_keeps_its_segments():
    segments = [
        {"steps": 450, "noise_multiplier": 0.9, "sampling_rate": 0.01},
        {"steps": 50, "noise_multiplier": 1.9, "sampling_rate": 0.02},
    ]
    event = event_of({"type": "dp_sgd", "sampler": "poisson", "schedule": segments})
    assert isinstance(event, events.StepwiseDpSgd)
    assert [s.noise_multiplier for s in event.schedule] == [0.9, 1.9]


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        (POISSON | {"steps": True}, ("int_type", "/mechanism/steps")),
        (POISSON | {"noise_multiplier": "1.1"}, ("float_type", "/mechanism/noise_multiplier")),
        (POISSON | {"noise_multiplier": False}, ("float_type", "/mechanism/noise_multiplier")),
        (
            POISSON | {"noise_multiplier": float("inf")},
            ("finite_number", "/mechanism/noise_multiplier"),
        ),
        (POISSON | {"noise_multiplier": 10**400}, ("float_type", "/mechanism/noise_multiplier")),
        (
            POISSON | {"noise_multiplier": 1.1e4},
            ("less_than_equal", "/mechanism/noise_multiplier"),
        ),
        (POISSON | {"steps": 10**9 + 1}, ("less_than_equal", "/mechanism/steps")),
        (POISSON | {"steps": 0}, ("greater_than_equal", "/mechanism/steps")),
        (POISSON | {"sampling_rate": 0}, ("greater_than", "/mechanism/sampling_rate")),
        (POISSON | {"sampling_rates": 0.1}, ("extra_forbidden", "/mechanism/sampling_rates")),
        (without(POISSON, "steps"), ("missing", "/mechanism/steps")),
        (without(POISSON, "sampling_rate"), ("missing", "/mechanism/sampling_rate")),
        (without(POISSON, "noise_multiplier"), ("missing", "/mechanism/noise_multiplier")),
        (without(POISSON, "type"), ("missing", "/mechanism/type")),
        (POISSON | {"type": "dpsgd"}, ("literal_error", "/mechanism/type")),
        (POISSON | {"epochs": 3}, ("inconsistent", "/mechanism/epochs")),
        (POISSON | {"remainder": "kept"}, ("inconsistent", "/mechanism/remainder")),
        (POISSON | {"sampler": "full_batch"}, ("inconsistent", "/mechanism/sampling_rate")),
        (
            POISSON | {"schedule": [{"steps": 1, "noise_multiplier": 1, "sampling_rate": 0.1}]},
            ("inconsistent", "/mechanism/sampling_rate"),
        ),
        (SHUFFLE | {"steps": 3000}, ("inconsistent", "/mechanism/steps")),
        (SHUFFLE | {"sampling_rate": 0.01}, ("inconsistent", "/mechanism/sampling_rate")),
        (without(SHUFFLE, "updates_per_epoch"), ("missing", "/mechanism/updates_per_epoch")),
        (without(SHUFFLE, "epochs"), ("missing", "/mechanism/epochs")),
        (SHUFFLE | {"epochs": 10**8}, ("out_of_range", "/mechanism/epochs")),
        ({"type": "compose", "parts": [POISSON] * 10_001}, ("too_long", "/mechanism/parts")),
        (
            {"type": "compose", "parts": [POISSON, POISSON | {"sampling_rate": 2}]},
            ("less_than_equal", "/mechanism/parts/1/sampling_rate"),
        ),
        (
            {
                "type": "dp_sgd",
                "sampler": "poisson",
                "schedule": [{"steps": 10**9, "noise_multiplier": 1.0, "sampling_rate": 0.1}] * 2,
            },
            ("out_of_range", "/mechanism/schedule"),
        ),
        (
            {
                "type": "dp_sgd",
                "sampler": "poisson",
                "schedule": [{"steps": 1, "noise_multiplier": 1.0}],
            },
            ("missing", "/mechanism/schedule/0/sampling_rate"),
        ),
        (5, ("model_attributes_type", "/mechanism")),
        (None, ("model_attributes_type", "/mechanism")),
    ],
)
def test_a_refusal_names_its_kind_and_its_field(mechanism, expected):
    assert refusals(mechanism) == [expected]


def test_sixteen_levels_are_accepted_and_seventeen_are_not():
    assert isinstance(event_of(nested(16)), events.Repeated)
    assert refusals(nested(17)) == [("out_of_range", "/mechanism" + "/of" * 16)]


def test_nesting_without_end_is_refused_like_any_other():
    assert refusals(nested(20_000))[0][0] == "out_of_range"


@pytest.mark.parametrize(
    ("mechanism", "pointer"),
    [
        (POISSON | {"noise_multiplier": 0}, "/mechanism/noise_multiplier"),
        (
            {
                "type": "compose",
                "parts": [SHUFFLE, {"type": "gaussian", "noise_multiplier": 0.0}],
            },
            "/mechanism/parts/1/noise_multiplier",
        ),
        (
            {
                "type": "repeat",
                "times": 2,
                "of": {
                    "type": "dp_sgd",
                    "sampler": "full_batch",
                    "schedule": [{"steps": 1, "noise_multiplier": 0}],
                },
            },
            "/mechanism/of/schedule/0/noise_multiplier",
        ),
    ],
)
def test_no_noise_is_a_question_for_accounting_alone(mechanism, pointer):
    assert isinstance(event_of(mechanism), events.Event)
    assert refusals(mechanism, NoisyBody) == [("out_of_range", pointer)]


def test_what_the_core_refuses_is_raised_with_the_full_pointer():
    # Built past validation, as a client may: the core is the second line.
    bad = DpSgd.model_construct(
        type="dp_sgd",
        sampler="poisson",
        sampling_rate=0.1,
        noise_multiplier=-1.0,
        steps=1,
        schedule=None,
        epochs=None,
        adaptive_clipping=None,
    )
    outer = Compose.model_construct(type="compose", parts=[bad])
    with pytest.raises(InvalidInput) as caught:
        outer.to_core()
    assert caught.value.pointer == "/mechanism/parts/0/noise_multiplier"


@pytest.mark.parametrize(
    ("mechanism", "event"),
    [
        (
            without(POISSON, "noise_multiplier"),
            events.poisson(sampling_rate=0.01, noise_multiplier=1.0, steps=3000),
        ),
        ({"type": "laplace", "count": 3}, events.Laplace(noise_multiplier=1.0, count=3)),
        (
            without(SHUFFLE, "noise_multiplier"),
            events.EpochDpSgd(
                sampler="shuffle", updates_per_epoch=100, epochs=30, noise_multiplier=1.0
            ),
        ),
        (
            {
                "type": "dp_sgd",
                "sampler": "poisson",
                "schedule": [
                    {"steps": 2, "noise_multiplier": 2, "sampling_rate": 0.1},
                    {"steps": 3, "sampling_rate": 0.1},
                ],
            },
            events.StepwiseDpSgd(
                sampler="poisson",
                schedule=(
                    events.Segment(steps=2, noise_multiplier=2.0, sampling_rate=0.1),
                    events.Segment(steps=3, noise_multiplier=1.0, sampling_rate=0.1),
                ),
            ),
        ),
    ],
)
def test_the_question_for_noise_is_a_template_of_scale_one(mechanism, event):
    assert event_of(mechanism, NoiseQuestion) == event


def test_the_question_for_noise_refuses_a_noise_multiplier():
    assert refusals(POISSON, NoiseQuestion) == [("extra_forbidden", "/mechanism/noise_multiplier")]


@pytest.mark.parametrize(
    ("mechanism", "event"),
    [
        (
            without(POISSON, "steps"),
            events.poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=1),
        ),
        (
            without(SHUFFLE, "epochs"),
            events.EpochDpSgd(
                sampler="shuffle", updates_per_epoch=100, epochs=1, noise_multiplier=1.1
            ),
        ),
    ],
)
def test_the_question_for_steps_is_a_template_of_one(mechanism, event):
    assert event_of(mechanism, StepsQuestion) == event


def test_the_question_for_steps_is_about_dp_sgd_alone():
    assert refusals({"type": "gaussian", "noise_multiplier": 4.0}, StepsQuestion) == [
        ("literal_error", "/mechanism/type"),
        ("missing", "/mechanism/sampler"),
    ]


def test_the_schema_offers_every_type_and_its_discriminator():
    schema = Body.model_json_schema()
    assert schema["properties"]["mechanism"]["discriminator"]["propertyName"] == "type"
    assert len(schema["properties"]["mechanism"]["oneOf"]) == 7


@pytest.mark.parametrize("mechanism", [POISSON, SHUFFLE, {"type": "compose", "parts": [SHUFFLE]}])
def test_an_answer_shows_the_fields_that_were_given_and_no_nulls(mechanism):
    assert Body.model_validate({"mechanism": mechanism}).model_dump() == {"mechanism": mechanism}


def test_a_stored_rate_below_what_is_asked_today_can_still_be_shown():
    tiny = events.poisson(sampling_rate=1e-30, noise_multiplier=1.0, steps=1)
    shown = from_core(tiny)
    with pytest.raises(InvalidInput) as caught:
        shown.to_core()
    assert caught.value.pointer == "/mechanism/sampling_rate"
