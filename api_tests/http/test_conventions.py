"""The conventions of the wire: problems, strict input, idempotency, tenants, lists."""

import pytest
from sqlalchemy import select

from service.db.tables import IdempotentAnswer

DATASET = {
    "name": "digits",
    "privacy_unit": "record",
    "source": "digits",
    "budget": {"epsilon": "8.0", "delta": "1e-5", "neighboring": "add_or_remove_one"},
}
OTHER = {**DATASET, "source": None, "record_count": 1000}


def problem(answer, status, code):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["type"] == "/problems/" + code.lower().replace("_", "-")
    assert body["request_id"].startswith("req_")
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"name": NaN}', 400, "NON_FINITE_NUMBER"),
        (b'{"name": -Infinity}', 400, "NON_FINITE_NUMBER"),
        (b'{"record_count": 1e400}', 400, "NON_FINITE_NUMBER"),
        (b'{"record_count": 1' + b"0" * 500 + b"}", 400, "NON_FINITE_NUMBER"),
        (b'{"name": "a", "name": "b"}', 400, "DUPLICATE_KEY"),
        (b'{"name": "\\ud800"}', 400, "BAD_TEXT"),
        (b'{"name": "\\u0000"}', 400, "BAD_TEXT"),
        (b'{"name": "\xff"}', 400, "BAD_JSON"),
        (b"{", 400, "BAD_JSON"),
        (b"", 400, "BAD_JSON"),
        (b"[" * 100_000, 400, "BAD_JSON"),
        (b"[]", 422, "WRONG_TYPE"),
        (b"null", 422, "WRONG_TYPE"),
    ],
)
def test_a_body_that_cannot_be_read_is_a_clear_problem(api, body, status, code):
    problem(api.post_raw("/v1/datasets", body), status, code)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"budget": {"epsilon": NaN}}', "/budget/epsilon"),
        (b'{"a/b": [0, {"c~": 1e999}]}', "/a~1b/1/c~0"),
        (b'{"budget": {"delta": 1, "delta": 2}}', "/budget/delta"),
        (b'{"name": "\\ud800"}', "/name"),
        (b"NaN", ""),
    ],
)
def test_what_cannot_be_read_is_pointed_at(api, body, pointer):
    answer = api.post_raw("/v1/datasets", body)
    assert answer.status_code == 400
    assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"record_count": True}, "WRONG_TYPE", "/record_count"),
        ({"record_count": "5"}, "WRONG_TYPE", "/record_count"),
        ({"record_count": 0}, "OUT_OF_RANGE", "/record_count"),
        ({"recordcount": 5}, "UNKNOWN_FIELD", "/recordcount"),
        ({"budget": {"epsilon": "8"}}, "MISSING_FIELD", "/budget/neighboring"),
        ({"budget": {**DATASET["budget"], "epsilon": 8.0}}, "WRONG_TYPE", "/budget/epsilon"),
        ({"budget": {**DATASET["budget"], "epsilon": "0"}}, "OUT_OF_RANGE", "/budget/epsilon"),
        ({"budget": {**DATASET["budget"], "epsilon": "١"}}, "OUT_OF_RANGE", "/budget/epsilon"),
        ({"budget": {**DATASET["budget"], "delta": "1"}}, "OUT_OF_RANGE", "/budget/delta"),
        ({"source": "s3://elsewhere"}, "URL_NOT_ALLOWED", "/source"),
        ({"record_count": 1}, "INCONSISTENT", "/record_count"),
    ],
)
def test_an_invalid_field_is_named(api, change, code, pointer):
    body = problem(api.post("/v1/datasets", {**DATASET, **change}), 422, code)
    assert body["errors"][0]["pointer"] == pointer


def test_a_misspelt_field_is_named_before_the_one_that_is_missing(api):
    misspelt = {**{k: v for k, v in DATASET.items() if k != "name"}, "nmae": "digits"}
    body = problem(api.post("/v1/datasets", misspelt), 422, "UNKNOWN_FIELD")
    assert [e["code"] for e in body["errors"]] == ["UNKNOWN_FIELD", "MISSING_FIELD"]
    assert "'name'" in body["errors"][0]["message"]


def test_an_unknown_field_comes_with_a_guess(api):
    body = problem(api.post("/v1/datasets", {**DATASET, "privacy_units": 1}), 422, "UNKNOWN_FIELD")
    assert "'privacy_unit'" in body["errors"][0]["message"]


def test_a_missing_content_type_says_which_header_to_add(api):
    answer = api.post_raw("/v1/datasets", b"{}", **{"Content-Type": "text/plain"})
    assert (
        "Content-Type: application/json" in problem(answer, 415, "UNSUPPORTED_MEDIA_TYPE")["detail"]
    )


def test_a_request_without_a_key_is_refused(client):
    problem(client.get("/v1/datasets"), 401, "UNAUTHENTICATED")
    answer = client.get("/v1/datasets", headers={"Authorization": "Bearer dpl_nonsense"})
    problem(answer, 401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_without_the_scope_is_told_which_one_it_needs(api):
    secret = api.post("/v1/api-keys", {"name": "reader", "scopes": ["datasets:read"]}).json()[
        "secret"
    ]
    reader = type(api)(api.client, secret)
    assert reader.get("/v1/datasets").status_code == 200
    body = problem(reader.post("/v1/datasets", DATASET), 403, "MISSING_SCOPE")
    assert body["required_scope"] == "datasets:write"


def test_a_key_cannot_give_what_it_lacks(api):
    secret = api.post("/v1/api-keys", {"name": "keys", "scopes": ["keys:admin"]}).json()["secret"]
    keeper = type(api)(api.client, secret)
    answer = keeper.post("/v1/api-keys", {"name": "more", "scopes": ["datasets:write"]})
    problem(answer, 403, "MISSING_SCOPE")


def test_a_rotated_or_revoked_key_stops_at_once(api):
    made = api.post("/v1/api-keys", {"name": "worker", "scopes": ["datasets:read"]}).json()
    old = type(api)(api.client, made["secret"])
    rotated = api.post(f"/v1/api-keys/{made['id']}/rotate").json()
    problem(old.get("/v1/datasets"), 401, "UNAUTHENTICATED")
    new = type(api)(api.client, rotated["secret"])
    assert new.get("/v1/datasets").status_code == 200
    assert api.delete(f"/v1/api-keys/{made['id']}").json()["revoked_at"]
    problem(new.get("/v1/datasets"), 401, "KEY_ENDED")


def test_a_secret_is_shown_once(api):
    made = api.post("/v1/api-keys", {"name": "once", "scopes": ["datasets:read"]}).json()
    assert made["secret"].startswith("dpl_")
    assert api.get(f"/v1/api-keys/{made['id']}").json()["secret"] is None
    listed = api.get("/v1/api-keys").text
    assert made["secret"] not in listed


def test_an_idempotency_key_is_required_where_budget_can_move(api):
    answer = api.client.post(
        "/v1/datasets", json=DATASET, headers={"Authorization": f"Bearer {api.token}"}
    )
    problem(answer, 400, "IDEMPOTENCY_KEY_REQUIRED")


def test_the_same_key_gives_the_same_answer_and_one_effect(api):
    first = api.post("/v1/datasets", OTHER, key="one")
    again = api.post("/v1/datasets", OTHER, key="one")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert len(api.get("/v1/datasets").json()["data"]) == 1


def test_the_same_key_with_another_body_is_refused(api):
    api.post("/v1/datasets", OTHER, key="one")
    answer = api.post("/v1/datasets", {**OTHER, "name": "changed"}, key="one")
    problem(answer, 422, "IDEMPOTENCY_KEY_REUSED")


def test_a_refusal_does_not_use_up_its_key(api):
    problem(
        api.post("/v1/datasets", {**OTHER, "source": "x://"}, key="one"), 422, "URL_NOT_ALLOWED"
    )
    assert api.post("/v1/datasets", OTHER, key="one").status_code == 201


def test_two_tenants_may_use_the_same_key(api, stranger):
    first = api.post("/v1/datasets", OTHER, key="one").json()
    second = stranger.post("/v1/datasets", OTHER, key="one").json()
    assert first["id"] != second["id"]


def test_validate_only_checks_everything_and_changes_nothing(api):
    answer = api.post("/v1/datasets", {**DATASET, "validate_only": True})
    assert answer.status_code == 200
    assert answer.json()["id"] is None
    assert api.get("/v1/datasets").json()["data"] == []
    api.post("/v1/datasets", DATASET)
    again = api.post("/v1/datasets", {**DATASET, "validate_only": True})
    problem(again, 409, "DATASET_EXISTS")


def test_the_same_records_have_one_budget(api, stranger):
    first = api.post("/v1/datasets", DATASET).json()
    second = problem(api.post("/v1/datasets", {**DATASET, "name": "again"}), 409, "DATASET_EXISTS")
    assert second["dataset_id"] == first["id"]
    assert stranger.post("/v1/datasets", DATASET).status_code == 201


def test_a_foreign_tenants_object_does_not_exist(api, stranger):
    mine = api.post("/v1/datasets", DATASET).json()["id"]
    unknown = problem(stranger.get("/v1/datasets/ds_0123"), 404, "NOT_FOUND")
    foreign = problem(stranger.get(f"/v1/datasets/{mine}"), 404, "NOT_FOUND")
    assert foreign["title"] == unknown["title"]
    problem(stranger.get(f"/v1/datasets/{mine}/budget"), 404, "NOT_FOUND")
    problem(stranger.get(f"/v1/datasets/{mine}/budget/entries"), 404, "NOT_FOUND")
    problem(stranger.patch(f"/v1/datasets/{mine}", {"name": "mine now"}), 404, "NOT_FOUND")
    assert stranger.get("/v1/datasets").json()["data"] == []
    assert api.get(f"/v1/datasets/{mine}").json()["name"] == "digits"


def test_an_etag_saves_a_read_and_guards_a_change(api):
    path = "/v1/datasets/" + api.post("/v1/datasets", DATASET).json()["id"]
    seen = api.get(path).headers["etag"]
    assert api.get(path, **{"If-None-Match": seen}).status_code == 304
    changed = api.patch(path, {"name": "renamed"}, **{"If-Match": seen})
    assert changed.status_code == 200
    assert changed.headers["etag"] != seen
    problem(api.patch(path, {"name": "late"}, **{"If-Match": seen}), 412, "PRECONDITION_FAILED")
    assert api.get(path).json()["name"] == "renamed"


def test_a_list_is_walked_page_by_page(api):
    made = [api.post("/v1/datasets", {**OTHER, "name": f"n{i}"}).json()["id"] for i in range(5)]
    seen, after = [], ""
    while True:
        page = api.get(f"/v1/datasets?limit=2{after}").json()
        assert page["object"] == "list"
        seen += [row["id"] for row in page["data"]]
        if not page["has_more"]:
            assert page["next_cursor"] is None
            break
        after = f"&after={page['next_cursor']}"
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=%00"])
def test_a_bad_page_is_refused(api, query):
    answer = api.get(f"/v1/datasets?{query}")
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"]


def test_unknown_paths_and_methods_are_problems(api):
    problem(api.get("/v1/nothing"), 404, "NOT_FOUND")
    problem(api.client.put("/v1/datasets"), 405, "METHOD_NOT_ALLOWED")


def test_a_foreign_host_header_is_refused(client):
    problem(client.get("/livez", headers={"Host": "evil.test"}), 400, "HOST_NOT_ALLOWED")


def test_a_body_over_the_limit_is_refused(api):
    big = b'{"name": "' + b"x" * (17 * 2**20) + b'"}'
    problem(api.post_raw("/v1/datasets", big), 413, "BODY_TOO_LARGE")


def test_each_problem_has_a_page(client):
    page = client.get("/problems/privacy-budget-exceeded")
    assert page.status_code == 200
    assert "PRIVACY_BUDGET_EXCEEDED" in page.text
    problem(client.get("/problems/no-such-thing"), 404, "NOT_FOUND")


def test_the_service_says_that_it_lives_and_is_ready(client):
    assert client.get("/livez").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 200
    assert client.get("/v1/meta").json()["api_version"] == "v1"


def test_the_docs_load_nothing_from_elsewhere(client):
    page = client.get("/docs").text
    assert "https://" not in page
    assert client.get("/docs/assets/swagger-ui-bundle.js").status_code == 200


def test_every_operation_documents_its_problems(client):
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for path, item in document["paths"].items():
        for operation in item.values():
            if path.startswith("/v1/"):
                assert {"400", "401", "404", "422", "503"} <= operation["responses"].keys()


def test_the_docs_page_can_read_openapi_3_1(client):
    script = client.get("/docs/assets/swagger-ui-bundle.js").text
    assert "openapi: 3.1" in script  # the versions that its error message names


def test_a_key_cannot_take_over_a_stronger_one_by_rotating_it(api):
    secret = api.post("/v1/api-keys", {"name": "keys", "scopes": ["keys:admin"]}).json()["secret"]
    strong = api.post("/v1/api-keys", {"name": "strong", "scopes": ["budgets:write"]}).json()
    keeper = type(api)(api.client, secret)
    body = problem(keeper.post(f"/v1/api-keys/{strong['id']}/rotate"), 403, "MISSING_SCOPE")
    assert body["required_scope"] == "budgets:write"
    assert api.post(f"/v1/api-keys/{strong['id']}/rotate").status_code == 200


@pytest.mark.parametrize(
    "end",
    [
        "2090-01-01T00:00:00",
        "2090-01-01",
        "9999-12-31T23:59:59-23:59",
        "3786912000",
        3786912000,
        1e300,
        True,
    ],
)
def test_the_end_of_a_key_is_a_time_with_its_offset(api, end):
    answer = api.post("/v1/api-keys", {"name": "a", "scopes": ["jobs:read"], "expires_at": end})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == "/expires_at"


def test_the_end_of_a_key_is_shown_in_utc(api):
    body = {"name": "a", "scopes": ["jobs:read"], "expires_at": "2090-01-01T01:00:00+01:00"}
    assert api.post("/v1/api-keys", body).json()["expires_at"] == "2090-01-01T00:00:00Z"


def test_a_replay_does_not_show_the_secret_and_the_database_does_not_hold_it(api, database):
    body = {"name": "once", "scopes": ["datasets:read"]}
    first = api.post("/v1/api-keys", body, key="once")
    again = api.post("/v1/api-keys", body, key="once")
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == {**first.json(), "secret": None}
    rotated = api.post(f"/v1/api-keys/{first.json()['id']}/rotate", key="new secret").json()
    with database.read() as session:
        stored = session.scalars(select(IdempotentAnswer.body)).all()
    assert len(stored) == 2
    for secret in (first.json()["secret"], rotated["secret"]):
        assert not any(secret in text for text in stored)


def test_a_dry_run_names_no_id_and_no_secret_of_what_it_did_not_make(api):
    dry = api.post("/v1/datasets", {**OTHER, "validate_only": True}).json()
    assert dry["id"] is None
    assert dry["budget"]["account_id"] is None
    body = {"name": "a", "scopes": ["jobs:read"], "validate_only": True}
    assert api.post("/v1/api-keys", body).json()["secret"] is None
    made = api.post("/v1/datasets", OTHER).json()
    asked = {"dataset_ids": [made["id"]], "mechanism": {"type": "laplace", "noise_multiplier": 9.0}}
    charge = api.post("/v1/reservations", {**asked, "validate_only": True}).json()["charges"][0]
    assert charge["account_id"] == made["budget"]["account_id"]


@pytest.mark.parametrize("composition", ["renyi", "zcdp"])
@pytest.mark.parametrize("delta", ["0.9999999999999999", "0.99999999999999999999999"])
def test_a_delta_next_to_one_opens_a_budget_that_can_be_spent(api, composition, delta):
    budget = {**DATASET["budget"], "delta": delta, "composition": composition}
    made = api.post("/v1/datasets", {**OTHER, "budget": budget})
    assert made.status_code == 201, made.text
    event = {"type": "gaussian", "noise_multiplier": 10.0}
    body = {"dataset_ids": [made.json()["id"]], "mechanism": event}
    assert api.post("/v1/reservations", body).status_code == 201
    spent = api.get(f"/v1/datasets/{made.json()['id']}/budget").json()
    assert spent["reserved"]["epsilon"] is not None
