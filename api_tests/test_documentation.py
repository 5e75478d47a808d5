"""What an operator or a client may meet is written down."""

import ast
from pathlib import Path

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
