"""Bounds over HTTP: published statements and certified brackets, each for its own sampler."""

import math

import pytest

from api_tests.http.test_conventions import problem


def separation(api, **body):
    answer = api.post("/v1/bounds/separation", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_below_the_threshold_the_published_floor_holds(api):
    body = separation(api, noise_multiplier=0.17, updates_per_epoch=5_000_000, sampler="shuffle")
    published = body["published_bound"]
    assert published["verdict"] == "below"
    assert round(published["sigma_threshold"], 5) == 0.18004
    assert body["kappa"]["lower"] >= published["kappa_floor"]
    assert body["kappa"]["upper"] <= 1 / math.sqrt(2)


def test_above_the_threshold_the_theorem_is_silent_and_we_are_not(api):
    body = separation(api, noise_multiplier=0.4, updates_per_epoch=100, sampler="balls_in_bins")
    assert body["published_bound"]["verdict"] == "silent"
    assert body["kappa"]["lower"] <= 0.2187 <= body["kappa"]["upper"]


def test_R5_no_bound_of_random_allocation_is_quoted_for_shuffle(api):
    body = separation(api, noise_multiplier=1.0, updates_per_epoch=1000, sampler="shuffle")
    assert all("shuffle" in line["proven_for"] for line in body["bounds"])
    uppers = [line["value"] for line in body["bounds"] if line["side"] == "upper"]
    exact = (2 * 0.6914624612740131 - 1) / math.sqrt(2)
    assert min(uppers) == pytest.approx(exact, rel=1e-9)


def test_the_least_noise_keeps_kappa_within_the_target(api):
    ask = {"updates_per_epoch": 100, "sampler": "balls_in_bins", "max_kappa": 0.1}
    body = api.post("/v1/bounds/minimum-noise", ask).json()
    assert body["kappa"]["upper"] <= 0.1
    assert body["closed_form"] >= body["noise_multiplier"] * (1 - 1e-6)
    less = separation(
        api,
        noise_multiplier=body["noise_multiplier"] - 1e-5,
        updates_per_epoch=100,
        sampler="balls_in_bins",
    )
    assert less["kappa"]["upper"] > 0.1


def test_the_threshold_alone_needs_no_target(api):
    body = api.post("/v1/bounds/minimum-noise", {"updates_per_epoch": 10_000, "sampler": "shuffle"})
    assert body.json()["published_threshold"] == pytest.approx(1 / math.sqrt(2 * math.log(10_000)))
    assert body.json()["noise_multiplier"] is None


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 0}, {"updates_per_epoch": 0}, {"sampler": "full_batch"}]
)
def test_a_question_outside_the_domain_is_refused(api, change):
    ask = {"noise_multiplier": 1.0, "updates_per_epoch": 10, "sampler": "shuffle", **change}
    problem(api.post("/v1/bounds/separation", ask), 422, "OUT_OF_RANGE")
