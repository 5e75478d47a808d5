"""Plans of training jobs: defaults filled in, noise solved, faults named with their place."""

import pytest

from api_tests.jobs import LEASE_STEPS, MECHANISM, add_dataset, planned
from service.core.errors import InvalidInput


@pytest.fixture
def dataset(database):
    return add_dataset(database)


def test_a_plan_shows_complete_settings_and_a_certified_forecast(database, dataset):
    request = planned(database, dataset).request
    forecast = request["forecast"]
    assert 0 < forecast["epsilon"]["upper"] < 8
    assert forecast["noise_multiplier"] == MECHANISM["noise_multiplier"]
    assert forecast["expected_batch_size"] == 0.5 * 1437
    assert forecast["neighboring"] == "add_or_remove_one"
    assert request["training"]["optimizer"]["name"] == "sgd"
    assert request["limits"] == {"max_runtime_s": 3600.0, "lease_steps": LEASE_STEPS}


def test_a_plan_for_a_target_meets_it(database, dataset):
    privacy = {"target_epsilon": 2.0, "delta": 1e-5}
    training = {"model": "mlp", "steps": 10, "sampling_rate": 0.25}
    request = planned(database, dataset, privacy=privacy, training=training).request
    assert request["forecast"]["epsilon"]["upper"] <= 2.0
    assert request["privacy"]["mechanism"]["steps"] == 10
    assert request["privacy"]["mechanism"]["sampling_rate"] == 0.25


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"training": {"model": "gpt"}}, "/training/model"),
        (
            {"training": {"model": "mlp", "model_options": {"hidden": 0}}},
            "/training/model_options/hidden",
        ),
        ({"training": {"model": "mlp", "steps": 5}}, "/training/steps"),
        ({"limits": {"lease_steps": 5000}}, "/limits/lease_steps"),
        ({"seed": 3}, "/seed"),
        (
            {"training": {"model": "mlp", "optimizer": {"name": "adam", "momentum": 0.5}}},
            "/training/optimizer/momentum",
        ),
        (
            {"privacy": {"mechanism": MECHANISM, "adaptive_clipping": {"count_noise_stddev": 9.0}}},
            "/privacy/adaptive_clipping",
        ),
        (
            {
                "privacy": {
                    "mechanism": {
                        "type": "dp_sgd",
                        "sampler": "shuffle",
                        "updates_per_epoch": 10,
                        "epochs": 1,
                        "noise_multiplier": 1.0,
                    }
                }
            },
            "/privacy/mechanism",
        ),
        ({"privacy": {"mechanism": {**MECHANISM, "steps": 2_000_000}}}, "/privacy/mechanism/steps"),
    ],
)
def test_what_the_trainer_cannot_do_is_refused_with_its_place(database, dataset, changes, pointer):
    with pytest.raises(InvalidInput) as refused:
        planned(database, dataset, **changes)
    assert refused.value.pointer == pointer


def test_a_target_beyond_all_noise_is_refused_below_privacy(database, dataset):
    with pytest.raises(InvalidInput) as refused:
        planned(database, dataset, privacy={"target_epsilon": 1e-9, "delta": 1e-30})
    assert refused.value.pointer.startswith("/privacy")
