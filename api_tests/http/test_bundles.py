"""A real bundle, verified by the command line and by other people's tools; and forged ones."""

import base64
import io
import json
import re
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from api_tests.http.test_certificates import certificate, check_of, dataset, job_id  # noqa: F401
from api_tests.http.test_training_jobs import run  # noqa: F401 - a fixture
from dpledger import verify as offline
from dpledger.cli import app
from dpledger.errors import ClientError
from service.core import bundle_case as names
from service.core.canonical import canonical
from service.core.certificate import parse_envelope, parse_statement


@pytest.fixture
def bundle(api, certificate):  # noqa: F811
    answer = api.get(f"/v1/certificates/{certificate['id']}/bundle")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    return answer.content


@pytest.fixture
def keys(client):
    return offline.keys_of(client.get("/.well-known/dpledger-keys.json").content)


def unpacked(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return sink.getvalue()


def outcomes(files, **options):
    data = files if isinstance(files, bytes) else packed(files)
    return {
        step.name: (step.result, step.detail) for step in offline.verify_bundle(data, **options)
    }


def failed(found):
    return {name for name, (result, _) in found.items() if result == "fail"}


def test_an_honest_bundle_passes_every_step_that_can_be_examined(bundle, keys):
    found = outcomes(bundle, trusted_keys=keys)
    skipped = {name for name, (result, _) in found.items() if result == "not_examined"}
    assert failed(found) == set(), found
    assert skipped == {"status_now"}
    assert "At most" in found["epsilon"][1]
    alone = outcomes(bundle)
    assert failed(alone) == set()
    assert alone["issuer_key"][0] == "not_examined"


def test_the_command_line_verifies_a_bundle_offline(bundle, client, tmp_path):
    path, listed = tmp_path / "bundle.zip", tmp_path / "keys.json"
    path.write_bytes(bundle)
    listed.write_bytes(client.get("/.well-known/dpledger-keys.json").content)
    done = CliRunner().invoke(app, ["verify", str(path), "--keys", str(listed)])
    assert done.exit_code == 0, done.output
    assert " 1  files" in done.output
    assert "13  epsilon       pass" in done.output
    assert done.output.splitlines()[-1] == "nothing speaks against this certificate"
    told = done.output.partition(" 1  files")[0]
    for subject in statement_of(unpacked(bundle))["subject"]:
        assert f"{subject['name']}  sha256 {subject['digest']['sha256']}" in told
    assert "ε = 8.0 at δ = 0.00001, add_or_remove_one" in told
    forged = unpacked(bundle)
    name = next(n for n in forged if n.endswith(".runs.json"))
    forged[name] = forged[name].replace(b"8", b"9", 1)
    path.write_bytes(packed(forged))
    done = CliRunner().invoke(app, ["verify", str(path), "--json"])
    assert done.exit_code == 1
    answer = json.loads(done.output)
    assert answer["valid"] is False
    assert answer["certified"]["epsilon"] == "8.0"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_unpacked_folder_is_a_bundle_too_until_a_file_is_added(bundle, tmp_path):
    folder = tmp_path / "bundle"
    for name, data in unpacked(bundle).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    done = CliRunner().invoke(app, ["verify", str(folder)])
    assert done.exit_code == 0, done.output
    assert "nobody outside of it vouches for the key (give --keys)" in done.output
    (folder / "more").write_bytes(b"")
    assert CliRunner().invoke(app, ["verify", str(folder)]).exit_code == 1


def test_the_bare_install_verifies_without_the_service_s_parts(bundle, tmp_path):
    path = tmp_path / "bundle.zip"
    path.write_bytes(bundle)
    blocked = "fastapi sqlalchemy pyarrow celery redis alembic structlog torch opacus"
    code = f"""
import sys
for name in {blocked.split()!r}:
    sys.modules[name] = None
from dpledger.cli import main
sys.argv = ["dpledger", "verify", {str(path)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing in the bundle speaks against it" in done.stdout


def blocks(text):
    """The code blocks of VERIFY.md by the tool that they use."""
    found = re.findall(r"^```(?:sh|python) (\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert {tool for tool, _ in found} == {"openssl", "securesystemslib", "pymerkle"}
    return dict(found)


@pytest.mark.parametrize("tool", ["openssl", "securesystemslib", "pymerkle"])
@pytest.mark.parametrize("honest", [True, False])
def test_the_commands_of_the_guide_accept_the_bundle_and_refuse_a_changed_one(
    bundle, tmp_path, tool, honest
):
    files = unpacked(bundle)
    if not honest:
        for name, data in files.items():
            if name in (names.PAE, names.ENVELOPE):
                payload = parse_envelope(files[names.ENVELOPE]).payload
                changed = payload.replace(b'"epsilon":"8.0"', b'"epsilon":"1.0"')
                old, new = base64.b64encode(payload), base64.b64encode(changed)
                files[name] = data.replace(old, new).replace(payload, changed)
            elif name.startswith("leaves/"):
                files[name] = data.replace(b"salt", b"sale")
    for name, data in files.items():
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
    script = blocks(files[names.GUIDE].decode())[tool]
    command = ["sh", "-c", script] if tool == "openssl" else [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is honest, done.stdout + done.stderr
    if tool == "pymerkle":
        assert (done.stdout == "ok\n") is honest


def chunk_files(files):
    return sorted(n for n in files if n.endswith(".runs.json"))


def swap(files, a, b):
    files[a], files[b] = files[b], files[a]


FORGERIES = {
    "a chunk is missing": ("noise_log", "is missing", lambda f, c: f.pop(c[1])),
    "a chunk is truncated": (
        "noise_log",
        "no JSON",
        lambda f, c: f.update({c[1]: f[c[1]][:-20]}),
    ),
    "a chunk lost its last steps": (
        "noise_log",
        "cut or extended",
        lambda f, c: f.update({c[1]: f[c[1]].replace(b'"steps":5', b'"steps":4')}),
    ),
    "a chunk is flipped": (
        "noise_log",
        "not those that were recorded",
        lambda f, c: f.update(
            {c[1]: f[c[1]].replace(b'"noise_multiplier":8', b'"noise_multiplier":9')}
        ),
    ),
    "two chunks are swapped": ("noise_log", "swapped", lambda f, c: swap(f, c[0], c[1])),
    "a Parquet file is flipped": (
        "parquet",
        "not the file that was stored",
        lambda f, c: f.update({c[0].replace("runs.json", "parquet"): b"PAR1"}),
    ),
    "a leaf is edited": (
        "leaves",
        "not in the log",
        lambda f, _: f.update({leaf_of(f, 2): f[leaf_of(f, 2)].replace(b"salt", b"sall")}),
    ),
    "a leaf is deleted": ("leaves", "is missing", lambda f, _: f.pop(leaf_of(f, 2))),
    "two leaves are reordered": (
        "leaves",
        "not in the log",
        lambda f, _: swap(f, leaf_of(f, 2), leaf_of(f, 3)),
    ),
    "a leaf is inserted": (
        "files",
        "does not belong",
        lambda f, _: f.update({"leaves/999.json": f[leaf_of(f, 2)]}),
    ),
    "a proof is another leaf's": (
        "leaves",
        "about another leaf",
        lambda f, _: swap(
            f,
            leaf_of(f, 2).replace("leaves", "proofs").replace("json", "tlog-proof"),
            leaf_of(f, 3).replace("leaves", "proofs").replace("json", "tlog-proof"),
        ),
    ),
    "the checkpoint is edited": (
        "checkpoint",
        "No signature",
        lambda f, _: f.update({names.CHECKPOINT: add_one_leaf(f[names.CHECKPOINT])}),
    ),
    "the consistency proof is empty": (
        "consistency",
        "rewritten",
        lambda f, _: f.update({names.CONSISTENCY: without_hashes(f[names.CONSISTENCY])}),
    ),
    "the statement is edited": (
        "signature",
        "was changed",
        lambda f, _: f.update(forged_statement(f)),
    ),
    "the signature is another's": (
        "files",
        "not those of",
        lambda f, _: f.update({names.SIGNATURE: bytes(64)}),
    ),
    "the key list is another's": (
        "signature",
        "not on the list",
        lambda f, _: f.update({names.KEYS: b'{"keys":[]}'}),
    ),
    "the certificate was not logged": (
        "logged",
        "not in the log",
        lambda f, _: [f.pop(n) for n in own_leaf(f)],
    ),
}


def statement_of(files):
    return parse_statement(parse_envelope(files[names.ENVELOPE]).payload)


def leaf_of(files, number):
    entries = statement_of(files)["predicate"]["log"]["entries"]
    return names.leaf_name(entries[number]["index"])


def own_leaf(files):
    named = {e["index"] for e in statement_of(files)["predicate"]["log"]["entries"]}
    found = {n for n in files if n.startswith("leaves/")} - {names.leaf_name(i) for i in named}
    return [*found, *(n.replace("leaves", "proofs").replace("json", "tlog-proof") for n in found)]


def add_one_leaf(note):
    lines = note.decode().split("\n")
    return "\n".join([lines[0], str(int(lines[1]) + 1), *lines[2:]]).encode()


def without_hashes(text):
    return canonical({**json.loads(text), "hashes": []})


def forged_statement(files):
    envelope = json.loads(files[names.ENVELOPE])
    payload = base64.b64decode(envelope["payload"])
    envelope["payload"] = base64.b64encode(
        payload.replace(b'"epsilon":"8.0"', b'"epsilon":"1.0"')
    ).decode()
    return {names.ENVELOPE: canonical(envelope)}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_every_forgery_is_refused_for_the_right_reason(bundle):
    for what, (step, reason, forge) in FORGERIES.items():
        files = unpacked(bundle)
        forge(files, chunk_files(files))
        found = outcomes(files)
        assert found[step][0] == "fail", (what, found)
        assert reason in found[step][1], (what, found[step])


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_any_flipped_byte_of_what_is_bound_is_found(bundle):
    files = unpacked(bundle)
    free = {names.GUIDE, names.KEYS}  # nothing binds these: the guide says so
    checked = 0
    for name, data in files.items():
        if name in free:
            continue
        for at in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
            changed = bytearray(data)
            changed[at] ^= 1
            found = outcomes({**files, name: bytes(changed)})
            assert failed(found), (name, at)
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_time_and_trust_decide_too(api, bundle, keys, certificate):  # noqa: F811
    now = datetime.now(UTC)
    assert failed(outcomes(bundle, now=now + timedelta(days=400))) == {"validity"}
    assert failed(outcomes(bundle, now=now - timedelta(days=1))) == {"validity"}
    assert "issuer_key" in failed(outcomes(bundle, trusted_keys=()))
    api.post(f"/v1/certificates/{certificate['id']}/revoke", {"reason": "withdrawn"})
    later = api.get(f"/v1/certificates/{certificate['id']}/bundle").content
    found = outcomes(later, trusted_keys=keys)
    assert failed(found) == {"validity"}
    assert "withdrawn" in found["validity"][1]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_is_no_bundle_is_refused(bundle):
    for data in (b"", b"PK", bundle[:-100]):
        with pytest.raises(ClientError):
            offline.verify_bundle(data)
    assert failed(outcomes({}))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_nothing_of_the_sealed_stream_is_in_a_bundle(bundle):
    for name, data in unpacked(bundle).items():
        for word in (b"realized_batch_size", b"noise_norm", b"sealed_object"):
            assert word not in data, name
