"""The Merkle log over HTTP, watched from outside; and the command that watches it."""

import json

import httpx2
import pytest
from typer.testing import CliRunner

from api_tests.http.test_conventions import DATASET, problem
from dpledger import verify as offline
from dpledger.cli import app
from dpledger.errors import ClientError
from service.core import checkpoint, merkle
from service.core.merkle import Frontier


def all_entries(api):
    found, after = [], None
    while True:
        query = "limit=2" + (f"&after={after}" if after else "")
        page = api.get(f"/v1/log/entries?{query}").json()
        found += page["data"]
        after = page["next_cursor"]
        if not page["has_more"]:
            return found


def keys_of(client):
    return offline.keys_of(client.get("/.well-known/dpledger-keys.json").content)


@pytest.fixture
def busy(api, stranger):
    """Leaves of two tenants."""
    assert api.post("/v1/datasets", DATASET).status_code == 201
    assert stranger.post("/v1/datasets", DATASET).status_code == 201
    assert api.post("/v1/api-keys", {"name": "k", "scopes": ["jobs:read"]}).status_code == 201


@pytest.mark.usefixtures("busy")
def test_the_leaves_give_the_root_that_is_signed(api, client):
    answer = api.get("/v1/log/checkpoint")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    point = offline.opened(answer.text, keys=keys_of(client))
    entries = all_entries(api)
    assert [entry["index"] for entry in entries] == list(range(point.size))
    leaves = [bytes.fromhex(entry["leaf_sha256"]) for entry in entries]
    assert merkle.root(leaves) == point.root
    assert offline.grown(Frontier(), entries, size=point.size).root == point.root


@pytest.mark.usefixtures("busy")
def test_what_a_leaf_says_is_its_own_tenant_s(api, stranger):
    for reader in (api, stranger):
        entries = all_entries(reader)
        own = [entry for entry in entries if entry["leaf"] is not None]
        foreign = [entry for entry in entries if entry["leaf"] is None]
        assert {entry["kind"] for entry in own} == {"account", "api_key"}
        assert foreign
        for entry in foreign:
            assert {k for k, v in entry.items() if v is not None} == {
                "object",
                "index",
                "leaf_sha256",
            }
        for entry in own:
            assert merkle.leaf_hash(entry["leaf"].encode()).hex() == entry["leaf_sha256"]
            assert json.loads(entry["leaf"])["body"] == entry["body"]


@pytest.mark.usefixtures("busy")
def test_inclusion_and_consistency_are_proved(api):
    entries = all_entries(api)
    leaves = [bytes.fromhex(entry["leaf_sha256"]) for entry in entries]
    for index in range(len(leaves)):
        body = api.get(f"/v1/log/proofs/inclusion?index={index}&size={len(leaves)}").json()
        assert body["leaf_sha256"] == leaves[index].hex()
        assert merkle.verify_inclusion(
            leaves[index],
            index=index,
            size=body["tree_size"],
            proof=[bytes.fromhex(h) for h in body["hashes"]],
            root=bytes.fromhex(body["root_sha256"]),
        )
    for old in range(len(leaves) + 1):
        body = api.get(f"/v1/log/proofs/consistency?from={old}&to={len(leaves)}").json()
        assert body["from_root_sha256"] == merkle.root(leaves[:old]).hex()
        assert merkle.verify_consistency(
            old,
            new=len(leaves),
            old_root=merkle.root(leaves[:old]),
            new_root=bytes.fromhex(body["to_root_sha256"]),
            proof=[bytes.fromhex(h) for h in body["hashes"]],
        )


@pytest.mark.parametrize(
    "path",
    [
        "entries?after=x",
        "entries?limit=0",
        "proofs/inclusion?index=99",
        "proofs/inclusion?index=0&size=99",
        "proofs/inclusion?index=-1",
        "proofs/consistency?from=99",
        "proofs/consistency?from=0&to=99",
        "proofs/consistency?from=2&to=1",
        "proofs/consistency",
    ],
)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("busy")
def test_what_the_log_cannot_answer_is_refused_by_name(api, path):
    answer = api.get(f"/v1/log/{path}")
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_log_wants_a_key_and_the_key_list_none(client):
    problem(client.get("/v1/log/entries"), 401, "UNAUTHENTICATED")
    problem(client.get("/v1/log/checkpoint"), 401, "UNAUTHENTICATED")
    body = client.get("/.well-known/dpledger-keys.json").json()
    (key,) = body["keys"]
    assert (key["algorithm"], key["state"]) == ("ed25519", "active")
    assert key["verifier_key"].startswith(body["origin"] + "+")


class Watched:
    """The command line's connection to the gateway of a test, and what a liar changes in it."""

    def __init__(self, api, lie=None):
        self.api, self.lie = api, lie

    def __call__(self, request):
        path = request.url.raw_path.decode()
        answer = self.api.get(path)
        text = answer.text
        if self.lie is not None:
            text = self.lie(path, text)
        headers = {"content-type": answer.headers["content-type"]}
        return httpx2.Response(answer.status_code, text=text, headers=headers)


def audited(api, monkeypatch, *arguments, lie=None):
    transport = httpx2.MockTransport(Watched(api, lie))
    real = httpx2.Client

    def client(**options):
        return real(**{**options, "transport": transport})

    monkeypatch.setattr(httpx2, "Client", client)  # the network, which is not ours
    try:
        return CliRunner().invoke(app, ["audit", "log", *arguments, "--url", "http://testserver"])
    finally:
        monkeypatch.setattr(httpx2, "Client", real)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("busy")
def test_an_auditor_reads_the_log_again_and_again(api, monkeypatch, tmp_path):
    saved = str(tmp_path / "checkpoint.txt")
    done = audited(api, monkeypatch, "--save", saved)
    assert done.exit_code == 0, done.output
    assert "give the signed root" in done.output
    assert api.post("/v1/api-keys", {"name": "l", "scopes": ["jobs:read"]}).status_code == 201
    done = audited(api, monkeypatch, "--since", saved)
    assert done.exit_code == 0, done.output
    assert "are its beginning" in done.output


def edited(_path, text):
    return text.replace("owner", "ownex").replace("created", "creatfd")


def deleted(path, text):
    if "/entries" not in path:
        return text
    body = json.loads(text)
    del body["data"][1]
    return json.dumps(body)


def inserted(path, text):
    if "/entries" not in path:
        return text
    body = json.loads(text)
    body["data"].insert(1, {**body["data"][0], "index": 1})
    return json.dumps(body)


def reordered(path, text):
    if "/entries" not in path:
        return text
    body = json.loads(text)
    first, second = body["data"][:2]
    body["data"][:2] = [{**second, "index": 0}, {**first, "index": 1}]
    return json.dumps(body)


@pytest.mark.parametrize("lie", [edited, deleted, inserted, reordered])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("busy")
def test_an_auditor_finds_a_log_that_was_rewritten(api, monkeypatch, lie):
    done = audited(api, monkeypatch, lie=lie)
    assert isinstance(done.exception, ClientError), done.output


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("busy")
def test_an_auditor_finds_a_fork_and_a_rollback(api, client, monkeypatch, tmp_path):
    signer = client.app.state.parts.signer
    note = api.get("/v1/log/checkpoint").text
    point = checkpoint.parse_checkpoint(note)
    for what, other in (
        ("rewritten", checkpoint.Checkpoint(origin=point.origin, size=2, root=bytes(32))),
        ("rolled back", checkpoint.Checkpoint(origin=point.origin, size=999, root=bytes(32))),
    ):
        signed = signer.sign(other.text.encode())
        saved = tmp_path / "old.txt"
        saved.write_text(
            checkpoint.signed_note(
                other.text,
                name=other.origin,
                public_key=signed.public_key,
                signature=signed.signature,
            )
        )
        done = audited(api, monkeypatch, "--since", str(saved))
        assert what in str(done.exception)
