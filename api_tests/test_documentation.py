"""What an operator or a client may meet is written down."""

import ast
from pathlib import Path

from api_tests.http.test_conventions import DATASET
from api_tests.test_house_rules import python_files
from service.api.problem_pages import MEANINGS
from service.core import errors
from service.core.credentials import SCOPES
from service.settings import Settings

ROOT = Path(__file__).parent.parent


def test_every_setting_is_documented():
    text = (ROOT / "docs" / "settings.md").read_text()
    missing = [n for n in Settings.model_fields if f"`DPLEDGER_{n.upper()}`" not in text]
    assert not missing


def test_every_scope_is_documented():
    text = (ROOT / "docs" / "scopes.md").read_text()
    assert [scope for scope in (*SCOPES, "tenants:admin") if f"`{scope}`" not in text] == []


def test_every_metric_is_documented_and_names_nobody(api):
    dataset_id = api.post("/v1/datasets", DATASET).json()["id"]
    api.get(f"/v1/datasets/{dataset_id}")
    lines = api.get("/metrics").text.splitlines()
    assert 'dpledger_accounts{state="open"} 1.0' in lines
    created = 'dpledger_requests_total{method="POST",route="/v1/datasets",status="201"} 1.0'
    assert created in lines
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    text = (ROOT / "docs" / "metrics.md").read_text()
    own = {name.removesuffix("_created") for name in names}
    assert [n for n in own if f"`{n}`" not in text and f"`{n}_total`" not in text] == []
    assert not any(name in line for line in lines for name in ("default", dataset_id, "digits"))


def test_every_problem_code_has_a_page():
    assert codes_in_the_service() - set(MEANINGS) == set()


def codes_in_the_service():
    """Codes of errors that the service raises, found in the source; warnings are not errors."""
    found = {cls.code for cls in vars(errors).values() if hasattr(cls, "code")}
    for path in python_files():
        if path.is_relative_to(ROOT / "service"):
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            for call in calls:
                if ast.unparse(call.func).rpartition(".")[2] not in ("Warn", "Notice"):
                    found |= {
                        word.value.value
                        for word in call.keywords
                        if word.arg == "code" and isinstance(word.value, ast.Constant)
                    }
    return {code for code in found if isinstance(code, str) and code.isupper()} - {"DOMAIN_ERROR"}
