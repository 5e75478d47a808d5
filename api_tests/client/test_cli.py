"""The command line and the demo against canned answers on a real port."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from api_tests.client.stub import Stub, serve
from dpledger import Client
from dpledger.cli import app
from dpledger.demo import run_demo


@pytest.fixture
def stub():
    return Stub()


@pytest.fixture
def url(stub):
    with serve(stub) as address:
        yield address


@pytest.fixture
def run(url):
    def _run(*words):
        return CliRunner().invoke(app, words, env={"DPLEDGER_URL": url})

    return _run


def told(url):
    text = io.StringIO()
    console = Console(file=text, width=200)
    with Client(url, "dpl_k") as client:
        fine = run_demo(client, console=console)
    return fine, text.getvalue()


def test_the_demo_supports_the_true_claim_and_refutes_half_of_it(url, stub):
    fine, text = told(url)
    assert fine
    assert "step 2 of 2" in text
    assert "claim ε = 3.000: supported" in text
    assert "claim ε = 1.500: refuted" in text
    (submitted,) = [body for _, path, body in stub.requests if path == "/v1/training-jobs"]
    assert submitted["privacy"] == {"target_epsilon": 3.0, "delta": 1e-5, "max_grad_norm": 0.5}


def test_the_demo_fails_when_a_false_claim_is_not_refuted(url, stub):
    stub.epsilon["lower"] = 0.0
    assert not told(url)[0]


def test_the_demo_fails_when_the_job_spent_more_than_its_target(url, stub):
    stub.epsilon["upper"] = 3.01
    assert not told(url)[0]


def test_the_demo_fails_when_the_job_fails_and_says_why(url, stub):
    stub.job |= {"state": "failed", "error": {"code": "OUT_OF_MEMORY"}}
    fine, text = told(url)
    assert not fine
    assert "OUT_OF_MEMORY" in text


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", 0), ("failed", 1), ("running", 2), ("cancelled", 4)]
)
def test_the_exit_status_of_wait_is_the_jobs(run, stub, state, code):
    stub.job["state"] = state
    assert run("jobs", "wait", "job_1", "--timeout-s", "0").exit_code == code


@pytest.mark.parametrize(("epsilon", "code"), [("3", 0), ("2.95", 2), ("1", 3)])
def test_the_exit_status_of_check_is_the_verdict(run, stub, epsilon, code):
    assert run("check", "job_1", "--epsilon", epsilon).exit_code == code
    claim = stub.requests[-1][2]["claim"]
    assert claim["privacy_unit"] == "patient"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("datasets create d --epsilon 8 --delta 1e-5 --source digits", "POST /v1/datasets"),
        ("datasets ls", "GET /v1/datasets"),
        ("datasets show ds_1", "GET /v1/datasets/ds_1"),
        ("datasets budget ds_1", "GET /v1/datasets/ds_1/budget"),
        ("jobs submit ds_1 --target-epsilon 3", "POST /v1/training-jobs"),
        ("jobs submit ds_1 --target-epsilon 3 --wait", "GET /v1/training-jobs/job_1/wait"),
        ("jobs show job_1", "GET /v1/training-jobs/job_1"),
        ("jobs logs job_1", "GET /v1/training-jobs/job_1/logs"),
        ("jobs cancel job_1", "POST /v1/training-jobs/job_1/cancel"),
        ("calc delta --noise-multiplier 1 --epsilon 1 --steps 9", "POST /v1/accounting/delta"),
        (
            "calc noise-multiplier --target-epsilon 1 --steps 9",
            "POST /v1/accounting/noise-multiplier",
        ),
        ("calc steps --noise-multiplier 1 --target-epsilon 1", "POST /v1/accounting/steps"),
        (
            "bounds separation --noise-multiplier 1 --updates-per-epoch 9",
            "POST /v1/bounds/separation",
        ),
        ("bounds minimum-noise --updates-per-epoch 9", "POST /v1/bounds/minimum-noise"),
        ("keys create k --scope jobs:read", "POST /v1/api-keys"),
        ("keys ls", "GET /v1/api-keys"),
    ],
)
def test_each_verb_asks_for_what_it_says(run, stub, words, asked):
    answer = run(*words.split())
    assert answer.exit_code == 0, answer.output
    method, path, _ = stub.requests[-1]
    assert f"{method} {path.partition('?')[0]}" == asked


def test_the_version_is_the_packages(run):
    assert json.loads(run("version", "--json").stdout) == {"version": run("version").stdout.strip()}


def test_json_output_is_the_services_own(run, stub):
    assert json.loads(run("jobs", "ls", "--json").stdout) == stub.job


def test_a_table_for_people_shows_every_job(run):
    assert "job_1  succeeded  ds_1" in run("jobs", "ls").stdout


def test_calc_sends_only_the_fields_that_were_given(run, stub):
    words = ("--noise-multiplier", "1.1", "--sampling-rate", "0.01", "--steps", "3000")
    answer = run("calc", "epsilon", *words)
    assert "epsilon: [2.9, 2.9991]" in answer.stdout
    assert stub.requests[-1][2]["mechanism"] == {
        "type": "dp_sgd",
        "sampler": "poisson",
        "noise_multiplier": 1.1,
        "sampling_rate": 0.01,
        "steps": 3000,
    }


def test_a_refusal_is_one_line_on_stderr_and_exit_status_1(url, stub):
    stub.refusal = {"status": 404, "code": "NOT_FOUND", "detail": "There is no such job."}
    done = words("jobs", "show", "job_2", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: NOT_FOUND: There is no such job.\n"


def words(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "dpledger", *arguments], capture_output=True, text=True, check=False
    )


def test_a_refusal_shows_what_helps_below_the_message(url, stub):
    stub.refusal = {
        "status": 409,
        "code": "PRIVACY_BUDGET_EXCEEDED",
        "detail": "Too much.",
        "request_id": "req_1",
        "shortfall": "0.5",
        "suggestions": ["fewer steps"],
    }
    done = words("jobs", "submit", "ds_1", "--target-epsilon", "3", "--url", url)
    assert done.returncode == 1
    assert done.stderr == (
        "error: PRIVACY_BUDGET_EXCEEDED: Too much.\n"
        '  shortfall: 0.5\n  suggestions: ["fewer steps"]\n'
    )


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("verify {dir}/bundle.zip --keys {dir}/no.json", "no.json"),
        ("verify {dir}/no.zip", "no.zip"),
        ("certificates bundle cert_1 --to {dir}/no/x.zip", "no/x.zip"),
        ("audit log --keys {dir}/no.json", "no.json"),
        ("audit log --since {dir}/no.txt", "no.txt"),
    ],
)
def test_a_file_that_is_not_there_is_one_line_and_exit_status_1(url, tmp_path, command, path):
    (tmp_path / "bundle.zip").write_bytes(b"")
    env = {**os.environ, "DPLEDGER_URL": url}
    line = [sys.executable, "-m", "dpledger", *command.format(dir=tmp_path).split()]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}/{path}: No such file or directory\n"


def test_a_table_never_cuts_an_id(run, stub):
    stub.job |= {"id": "job_" + "0" * 60, "dataset_id": "ds_" + "1" * 60}
    line = run("jobs", "ls").stdout.splitlines()[1]
    assert stub.job["id"] in line
    assert stub.job["dataset_id"] in line


@pytest.mark.parametrize(("given", "sent"), [((), None), (("--max-grad-norm", "2"), 2.0)])
def test_a_job_leaves_its_clip_norm_to_the_preset_unless_told(run, stub, given, sent):
    assert run("jobs", "submit", "ds_1", "--target-epsilon", "3", *given).exit_code == 0
    assert stub.requests[-1][2]["privacy"].get("max_grad_norm") == sent


@pytest.mark.parametrize("verb", ["up", "demo --embedded"])
def test_without_the_server_parts_nothing_is_started(verb):
    code = f"""
import sys
sys.modules["fastapi"] = None
from dpledger.cli import main
sys.argv = ["dpledger", *{verb.split()!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the server parts are not installed: pip install 'dpledger[service,worker]'\n"
    )


def test_the_client_side_loads_neither_the_server_nor_torch():
    code = (
        "import sys, dpledger.cli; "
        "print(sorted({'fastapi', 'sqlalchemy', 'celery', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
