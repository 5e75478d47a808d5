"""Accounting over HTTP: certified intervals, honest samplers, never a guess."""

import pytest

from api_tests.http.test_conventions import problem
from api_tests.http.test_reservations import STEPS

SHUFFLED = {
    "type": "dp_sgd",
    "sampler": "shuffle",
    "updates_per_epoch": 100,
    "epochs": 30,
    "noise_multiplier": 1.1,
}


def ask(api, question, **body):
    answer = api.post(f"/v1/accounting/{question}", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("neighboring", "truth"), [("add_or_remove_one", 2.6755), ("replace_one", 4.6118)]
)
def test_epsilon_is_a_narrow_certified_interval(api, neighboring, truth):
    body = ask(api, "epsilon", mechanism=STEPS, delta=1e-5, neighboring=neighboring)
    assert body["object"] == "accounting.epsilon"
    assert body["certified"] is True
    assert body["neighboring"] == neighboring
    assert body["epsilon"]["lower"] <= body["epsilon"]["upper"]
    assert round(body["epsilon"]["upper"], 4) == truth
    assert body["epsilon"]["upper"] - body["epsilon"]["lower"] < 1e-6


def test_other_accountants_stand_beside_the_answer(api):
    wanted = ["rdp", "prv", "pld", "gdp"]
    body = ask(api, "epsilon", mechanism=STEPS, delta=1e-5, cross_checks=wanted)
    others = {c["accountant"]: c for c in body["cross_checks"]}
    assert list(others) == wanted
    assert 2.932 < others["rdp"]["epsilon"]["upper"] < 2.934
    for name in ("prv", "pld"):
        assert others[name]["epsilon"]["lower"] <= 2.6754756 <= others[name]["epsilon"]["upper"]
    assert others["gdp"]["certified"] is False
    assert others["gdp"]["epsilon"] is None


def test_R4_a_shuffled_run_never_gets_the_poisson_number(api):
    body = ask(api, "epsilon", mechanism=SHUFFLED, delta=1e-5, neighboring="zero_out")
    assert body["epsilon"]["lower"] > 2.6755
    assert (
        round(body["epsilon"]["upper"], 2) == 32.92 or round(body["epsilon"]["upper"], 2) == 32.91
    )
    assert "SHUFFLE_NOT_AMPLIFIED" in [w["code"] for w in body["warnings"]]


def test_no_noise_is_unbounded_not_infinite(api):
    body = ask(api, "epsilon", mechanism={**STEPS, "noise_multiplier": 0}, delta=1e-5)
    assert body["epsilon"] == {"lower": None, "upper": None, "is_unbounded": True}


def test_delta_and_epsilon_are_inverse(api):
    epsilon = ask(api, "epsilon", mechanism=STEPS, delta=1e-5)["epsilon"]["upper"]
    delta = ask(api, "delta", mechanism=STEPS, epsilon=epsilon)["delta"]
    assert delta["lower"] <= 1e-5 * (1 + 1e-6)
    assert abs(delta["upper"] - 1e-5) < 1e-10


def test_R1_the_noise_multiplier_is_on_the_safe_side(api):
    template = {k: v for k, v in STEPS.items() if k != "noise_multiplier"}
    body = ask(api, "noise-multiplier", mechanism=template, target_epsilon=2.0, delta=1e-5)
    assert body["achieved"]["epsilon"]["upper"] <= 2.0
    assert 1.3133 < body["noise_multiplier"] <= 1.3134
    again = ask(api, "epsilon", mechanism=body["mechanism"], delta=1e-5)
    assert again["epsilon"]["upper"] <= 2.0


def test_one_more_step_than_the_answer_misses_the_target(api):
    template = {k: v for k, v in STEPS.items() if k != "steps"}
    body = ask(api, "steps", mechanism=template, target_epsilon=1.0, delta=1e-5)
    beyond = {**STEPS, "steps": body["steps"] + 1}
    assert body["achieved"]["epsilon"]["upper"] <= 1.0
    assert ask(api, "epsilon", mechanism=beyond, delta=1e-5)["epsilon"]["lower"] > 1.0


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b'{"delta": NaN}', 400, "NON_FINITE_NUMBER"),
        (b'{"delta": 1e400}', 400, "NON_FINITE_NUMBER"),
        (b'{"delta": 1e-5, "delta": 1e-6}', 400, "DUPLICATE_KEY"),
        (
            b'{"mechanism": {"type": "gaussian", "noise_multiplier": true}, "delta": 1e-5}',
            422,
            "WRONG_TYPE",
        ),
        (
            b'{"mechanism": {"type": "gaussian", "noise_multiplier": 1.0}, "delta": 1}',
            422,
            "OUT_OF_RANGE",
        ),
        (
            b'{"mechanism": {"type": "gaussian", "noise_multiplier": 1.0}, "delta": 0}',
            422,
            "OUT_OF_RANGE",
        ),
        (
            b'{"mechanism": {"type": "gaussian", "noise_multipler": 1.0}, "delta": 1e-5}',
            422,
            "UNKNOWN_FIELD",
        ),
    ],
)
def test_bad_questions_are_clear_problems(api, raw, status, code):
    body = api.post_raw("/v1/accounting/epsilon", raw).json()
    assert (body["status"], code in {body["code"], *(e["code"] for e in body["errors"])}) == (
        status,
        True,
    ), body


def test_a_field_deep_inside_a_mechanism_is_named(api):
    parts = [STEPS, {**STEPS, "sampling_rate": 1.5}]
    answer = api.post(
        "/v1/accounting/epsilon", {"mechanism": {"type": "compose", "parts": parts}, "delta": 1e-5}
    )
    body = problem(answer, 422, "OUT_OF_RANGE")
    assert body["errors"][0]["pointer"] == "/mechanism/parts/1/sampling_rate"


def test_the_accountants_say_what_they_certify(api):
    data = api.get("/v1/accounting/accountants").json()["data"]
    assert [a["name"] for a in data] == ["auto", "rdp", "prv", "pld", "gdp"]
    assert [a["name"] for a in data if a["certified"]] == ["auto", "rdp"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("change", "epsilon"),
    [
        ({"sampling_rate": 0.5, "noise_multiplier": 0.01}, 1e6),
        ({}, 1e6),
        ({"sampling_rate": 1e-15}, 0.0),
        ({"sampling_rate": 1.0, "noise_multiplier": 1e4, "steps": 1}, 1e6),
    ],
)
def test_numbers_at_the_edge_of_their_range_have_a_certified_answer(api, change, epsilon):
    body = ask(api, "delta", mechanism={**STEPS, **change}, epsilon=epsilon)
    assert 0 <= body["delta"]["lower"] <= body["delta"]["upper"] <= 1


@pytest.mark.parametrize(
    ("question", "body", "pointer"),
    [
        ("delta", {"mechanism": STEPS, "epsilon": 1e9}, "/epsilon"),
        ("delta", {"mechanism": STEPS, "epsilon": 10**30}, "/epsilon"),
        (
            "epsilon",
            {"mechanism": {**STEPS, "sampling_rate": 5e-324}, "delta": 1e-5},
            "/mechanism/sampling_rate",
        ),
        (
            "noise-multiplier",
            {
                "mechanism": {k: v for k, v in STEPS.items() if k != "noise_multiplier"},
                "target_epsilon": 1e300,
                "delta": 1e-5,
            },
            "/target_epsilon",
        ),
    ],
)
def test_numbers_that_no_run_has_are_out_of_range(api, question, body, pointer):
    answer = api.post(f"/v1/accounting/{question}", body)
    assert problem(answer, 422, "OUT_OF_RANGE")["errors"][0]["pointer"] == pointer
