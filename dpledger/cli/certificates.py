"""``dpledger verify``, ``certificates`` and ``audit``: what was certified, and what was logged."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from dpledger.cli.console import (
    FAILED,
    ApiKey,
    AsJson,
    Url,
    connect,
    errors,
    make_app,
    output,
    print_json,
    show,
    show_list,
)
from dpledger.errors import ClientError
from dpledger.transport import Json

app = make_app("Certificates of supported claims.")
audit = make_app("The log that everything is written in.")

CertificateId = Annotated[str, typer.Argument(help="cert_…")]
Keys = Annotated[
    Path | None,
    typer.Option(help="The issuer's key list, from /.well-known/dpledger-keys.json."),
]
_COLOURS: Final = {"pass": "green", "fail": "red", "not_examined": "yellow"}


def verify(
    bundle: Annotated[
        Path, typer.Argument(help="A certificate's zip file, or its unpacked folder.")
    ],
    *,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Verify a certificate offline: numbered steps; exit status 1 if one of them fails."""
    from dpledger import verify as offline  # noqa: PLC0415 - scipy, which few verbs need

    trusted = None if keys is None else offline.keys_of(keys.read_bytes())
    files = offline.read_bundle(bundle)
    stated = offline.certified(files)
    steps = offline.verify_bundle(files, trusted_keys=trusted)
    failed = [step for step in steps if step.result == "fail"]
    if as_json:
        print_json(
            {
                "object": "bundle_verification",
                "valid": not failed,
                "certified": stated,
                "steps": [
                    {"number": s.number, "name": s.name, "result": s.result, "detail": s.detail}
                    for s in steps
                ],
            }
        )
    else:
        _tell_certified(stated)
        for step in steps:
            words = step.result.replace("_", " ")
            line = Text(f"{step.number:2}  {step.name:12}  ")
            line.append(f"{words:12}", style=_COLOURS[step.result])
            output().print(line.append(f"  {_printable(step.detail)}"))
        if failed:
            output().print("refused: what is stated above is not to be relied on")
        elif keys is None:
            output().print(
                "nothing in the bundle speaks against it, but nobody outside of it vouches for "
                "the key (give --keys)"
            )
        else:
            output().print("nothing speaks against this certificate")
    raise typer.Exit(FAILED if failed else 0)


@app.command()
def issue(
    check_id: Annotated[str, typer.Argument(help="chk_…")],
    *,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Certify a supported check."""
    with connect(url, api_key) as client:
        answer = client.certify(check_id)
    if as_json:
        show(answer, as_json=True)
    else:
        show({name: answer[name] for name in ("id", "state", "expires_at")}, as_json=False)


@app.command("ls")
def list_certificates(*, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List all certificates."""
    with connect(url, api_key) as client:
        columns = ("id", "state", "subject_id", "created_at", "expires_at")
        show_list(client.certificates(), columns=columns, as_json=as_json)


@app.command()
def bundle(
    certificate_id: CertificateId,
    *,
    to: Annotated[Path | None, typer.Option(help="Default: <certificate>.zip")] = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Save what verifies a certificate offline."""
    with connect(url, api_key) as client:
        target = to or Path(f"{certificate_id}.zip")
        typer.echo(client.bundle(certificate_id, to=target))


@app.command()
def revoke(
    certificate_id: CertificateId,
    *,
    reason: Annotated[str, typer.Option(help="For everybody to read.")],
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Say that a certificate does not hold."""
    with connect(url, api_key) as client:
        answer = client.revoke_certificate(certificate_id, reason=reason)
    typer.echo(answer["state"])


@audit.command("log")
def audit_log(
    *,
    since: Annotated[
        Path | None, typer.Option(help="A checkpoint that was saved before: it must still hold.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Where to save the newest one.")] = None,
    keys: Keys = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Read the whole log, hash it again, and compare it with its signed checkpoint."""
    from dpledger import verify as offline  # noqa: PLC0415 - as above
    from service.core.merkle import Frontier  # noqa: PLC0415 - as above

    note_then = None if since is None else since.read_bytes().decode(errors="replace")
    with connect(url, api_key) as client:
        listed = json.dumps(client.signing_keys()).encode() if keys is None else keys.read_bytes()
        known = offline.keys_of(listed)
        note = client.checkpoint()
        if keys is None:
            errors().print(
                "the keys came from the audited service itself: give --keys with a list that you "
                "got elsewhere"
            )
        point = offline.opened(note, keys=known, saved_list=keys is not None)
        tree = offline.grown(Frontier(), client.log_entries(), size=point.size)
        if (tree.size, tree.root) != (point.size, point.root):
            raise ClientError("The leaves do not give the root that was signed.")
        typer.echo(f"{point.origin}: {point.size} leaves give the signed root")
        if note_then is not None:
            old = offline.opened(note_then, keys=known, saved_list=keys is not None)
            if old.size > point.size:
                raise ClientError(f"The log was rolled back from {old.size} leaves.")
            proof = client.consistency_proof(old=old.size, new=point.size)
            if not offline.consistent(old, point, hashes=proof["hashes"]):
                raise ClientError("The log was rewritten: the saved checkpoint is not in it.")
            typer.echo(f"the {old.size} leaves of the saved checkpoint are its beginning")
    if save is not None:
        save.write_text(note, encoding="utf-8")


def _tell_certified(stated: Json | None) -> None:
    """Say what the certificate promises, before the steps that test it."""
    if stated is None:
        output().print("what is certified cannot be read")
        return
    told = {name: "-" if value is None else value for name, value in stated.items()}
    lines = [
        f"certificate {told['certificate_id']} states, subject to the steps below:",
        *(f"  subject    {s['name']}  sha256 {s['sha256']}" for s in stated["subjects"]),
        f"  guarantee  ε = {told['epsilon']} at δ = {told['delta']}, {told['neighboring']}",
        f"  unit       {told['privacy_unit']}",
        f"  scope      {told['scope']}, release {told['release']}",
        f"  evidence   {told['evidence_level']}",
        f"  issuer     {told['issuer']}",
        f"  validity   {told['issued_at']} until {told['valid_until']}",
    ]
    for line in lines:
        output().print(Text(_printable(line)))


def _printable(text: str) -> str:
    """The text without what could steer a terminal: a bundle may come from anybody."""
    return "".join(c if c.isprintable() else "�" for c in text)
