"""``dpledger calc`` without a service."""

import json

import pytest
from typer.testing import CliRunner

from dpledger import ClientError
from dpledger.cli import app
from dpledger.offline import account

POISSON = {"type": "dp_sgd", "sampler": "poisson", "sampling_rate": 0.01}
RATE = "--sampling-rate 0.01"


def calc(line):
    words = ["calc", *line.split(), "--json"]
    done = CliRunner().invoke(app, words, env={"DPLEDGER_URL": ""})
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_epsilon_contains_the_known_value():
    answer = calc(f"epsilon --noise-multiplier 1.1 {RATE} --steps 3000 --delta 1e-5")
    assert answer["epsilon"]["lower"] <= 2.6755 + 5e-5
    assert answer["epsilon"]["upper"] >= 2.6755 - 5e-5
    assert answer["epsilon"]["upper"] - answer["epsilon"]["lower"] < 0.01


def test_delta_at_the_upper_epsilon_is_within_the_given_delta():
    mechanism = {**POISSON, "noise_multiplier": 1.1, "steps": 300}
    epsilon = account("epsilon", mechanism=mechanism, neighboring="add_or_remove_one", delta=1e-5)
    delta = account(
        "delta",
        mechanism=mechanism,
        neighboring="add_or_remove_one",
        epsilon=epsilon["epsilon"]["upper"],
    )
    assert delta["delta"]["lower"] <= 1e-5


def test_noise_and_steps_keep_to_their_target():
    noise = calc(f"noise-multiplier --target-epsilon 3 {RATE} --steps 300")
    assert noise["achieved"]["epsilon"]["upper"] <= 3
    words = f"--noise-multiplier {noise['noise_multiplier']} {RATE}"
    steps = calc(f"steps --target-epsilon 3 {words}")
    assert steps["steps"] >= 300
    assert steps["achieved"]["epsilon"]["upper"] <= 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mechanism": POISSON}, "noise_multiplier"),
        ({"neighboring": "close"}, "neighboring is one of add_or_remove_one"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_words(change, words):
    question = {
        "mechanism": {**POISSON, "noise_multiplier": 1.0, "steps": 1},
        "neighboring": "add_or_remove_one",
        "delta": 1e-5,
    }
    with pytest.raises(ClientError, match=words):
        account("epsilon", **{**question, **change})
