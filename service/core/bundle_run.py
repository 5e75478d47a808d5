"""Steps of a bundle's verification about the run: its noise log, its charges, its ε."""

import hashlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, cast

from service.core import ledger, replay
from service.core.bundle_case import Case, Fails, Skips, chunks, entries, parquet_name, runs_name
from service.core.certificate import canonical_json
from service.core.chunks import canonical_records
from service.core.events import Event, for_unit, from_json
from service.core.noise_log import parse as parse_records
from service.core.replay import Run

_MAX_CHUNK_STEPS: Final = 1_000_000


def noise_log_step(case: Case) -> str:
    """The chunks follow each other from step 0, and their records are those recorded."""
    stated = chunks(case.stated())
    if not stated:
        raise Skips("No noise log belongs to this certificate.")
    chunk_leaves = case.about("chunk")
    if len(chunk_leaves) != len(stated):
        raise Fails("The certificate names other chunks than the log has.")
    found: list[Run] = []
    step, previous = 0, None
    hashes = [e["leaf_sha256"] for e in entries(case.stated()) if e["kind"] == "chunk"]
    for chunk, leaf, leaf_hash in zip(stated, chunk_leaves, hashes, strict=True):
        place = f"The chunk of the steps {chunk['first_step']} to {chunk['end_step']}"
        for name in ("first_step", "end_step", "sha256", "parquet_sha256"):
            if chunk[name] != leaf[name]:
                raise Fails(f"{place}: the log has another {name}.")
        if chunk["first_step"] != step:
            raise Fails(f"{place}: step {step} comes next; a chunk is missing or moved.")
        if leaf["previous"] != previous:
            raise Fails(f"{place}: it does not follow the one before.")
        found += _records_of(case, chunk, place=place)
        step, previous = chunk["end_step"], leaf_hash
    jobs = case.about("job")
    if jobs and (jobs[-1]["steps"], jobs[-1]["last_chunk"]) != (step, previous):
        raise Fails(f"The run ended at step {jobs[-1]['steps']}; the chunks end at {step}.")
    case.runs = found
    return f"{len(stated)} chunks, {step} steps without a gap, all as they were recorded."


def parquet_step(case: Case) -> str:
    """The Parquet files are those that were stored."""
    stated = chunks(case.stated())
    if not stated:
        raise Skips("No noise log belongs to this certificate.")
    for chunk in stated:
        name = parquet_name(chunk["first_step"], chunk["end_step"])
        if hashlib.sha256(case.file(name)).hexdigest() != chunk["parquet_sha256"]:
            raise Fails(f"{name} is not the file that was stored.")
    return f"{len(stated)} files as they were stored; their records were read from runs.json."


def ledger_step(case: Case) -> str:
    """Everything that ran was reserved, leased and charged, on the account that is named."""
    stated = case.stated()
    if stated["budget"] is None:
        raise Skips("No account belongs to this certificate.")
    opened, reserved = _one(case.about("account")), _one(case.about("reserve"))
    closed = _one([*case.about("settle"), *case.about("release"), *case.about("expire")])
    account = stated["budget"]["account_id"]
    for body in (opened, reserved, closed, *case.about("lease")):
        if body["account_id"] != account:
            raise Fails("A leaf is about another account.")
    if closed["account_state"] == "overdrawn":
        raise Fails("The account is overdrawn: it promises nothing.")
    _check_guarantee(stated["guarantee"], opened)
    leased = _leased(case)
    ran = _ran(case)
    if ran is None:
        raise Skips("Without the noise log nothing shows what ran.")
    logged = sum(run.steps for run in case.runs or ())
    if logged > leased:
        raise Fails(f"{logged} steps ran, {leased} were leased.")
    charged = [_sum(column) for column in zip(*_postings(case), strict=True)]
    price = ledger.price(ran, _terms(opened))
    for paid, due in zip(charged, price, strict=True):
        if paid is not None and (due is None or paid < due):
            raise Fails("The account was charged less than what ran.")
    return f"{logged} steps ran, {leased} were leased, and at least that was charged."


def epsilon_step(case: Case) -> str:
    """ε again, from the records alone."""
    stated = case.stated()
    guarantee, scope = stated["guarantee"], stated["claim"]["scope"]
    claimed = Decimal(guarantee["epsilon"])
    if scope == "dataset_lifetime":
        return _lifetime(case, guarantee, claimed=claimed)
    if scope != "single_job":
        raise Skips(f"A claim of scope {scope} rests on more than one run.")
    events = _priced(case)
    if not events:
        raise Skips("Neither a log nor stated parameters: nothing to compute from.")
    records = guarantee["max_records_per_unit"] or 1
    upper = max(
        case.policy.epsilon_of(
            for_unit(event, records=records),
            delta=float(guarantee["delta"]),
            neighboring=guarantee["neighboring"],
        ).upper
        for event in events
    )
    if not upper <= claimed:
        raise Fails(f"The records give ε up to {upper:.6g}; the certificate says {claimed:f}.")
    return f"At most {upper:.9g}, within the certified {claimed:f} at δ = {guarantee['delta']}."


def _records_of(case: Case, chunk: Mapping[str, Any], *, place: str) -> list[Run]:
    """The runs of a chunk, whose records are those that the leaf's digest covers."""
    name = runs_name(chunk["first_step"], chunk["end_step"])
    listed = canonical_json(case.file(name), what=name)
    found: list[Run] = []
    step = chunk["first_step"]
    for entry in cast("list[dict[str, Any]]", listed):
        fields = {key: value for key, value in entry.items() if key != "steps"}
        (upload,) = parse_records([fields])
        steps = entry["steps"]
        if not isinstance(steps, int) or not 0 < steps <= _MAX_CHUNK_STEPS:
            raise Fails(f"{place}: {name} has a run without steps.")
        if upload.record.step != step:
            raise Fails(
                f"{place}: {name} begins elsewhere; chunks were swapped, or steps left out."
            )
        found.append(Run(first_step=step, steps=steps, record=upload.record))
        step += steps
    if step != chunk["end_step"]:
        raise Fails(f"{place}: {name} ends at step {step}; it was cut or extended.")
    if hashlib.sha256(canonical_records(found)).hexdigest() != chunk["sha256"]:
        raise Fails(f"{place}: its records are not those that were recorded.")
    return found


def _leased(case: Case) -> int:
    leased = 0
    for body in case.about("lease"):
        if body["steps"]["first"] > leased:
            raise Fails(f"Steps from {leased} on were never leased.")
        leased = max(leased, body["steps"]["end"])
    return leased


def _check_guarantee(guarantee: Mapping[str, Any], opened: Mapping[str, Any]) -> None:
    for name in ("privacy_unit", "max_records_per_unit"):
        if guarantee[name] != opened[name]:
            raise Fails(f"The account was opened with another {name}.")


def _terms(opened: Mapping[str, Any]) -> ledger.AccountTerms:
    return ledger.AccountTerms(
        epsilon=Decimal(opened["epsilon"]),
        delta=Decimal(opened["delta"]),
        neighboring=opened["neighboring"],
        privacy_unit=opened["privacy_unit"],
        composition=opened["composition"],
        orders=tuple(float(order) for order in opened["orders"]),
        weights=tuple(Decimal(weight) for weight in opened["weights"]),
        records_per_unit=opened["max_records_per_unit"],
    )


def _postings(case: Case) -> list[list[int | None]]:
    bodies = [body for kind in _POSTING for body in case.about(kind)]
    return [
        [None if text is None else int(text) for text in body["posted_change"]] for body in bodies
    ]


_POSTING: Final = ("lease", "settle", "release", "expire")


def _sum(column: Sequence[int | None]) -> int | None:
    """The sum of one order's postings; an order that overflowed once is dead for good."""
    total = 0
    for amount in column:
        if amount is None:
            return None
        total += amount
    return total


def _one(bodies: list[dict[str, Any]]) -> dict[str, Any]:
    if len(bodies) != 1:
        raise Fails("The account's opening, the reservation and its end are each named once.")
    return bodies[0]


def _ran(case: Case) -> Event | None:
    return None if case.runs is None else replay.replay(case.runs)


def _priced(case: Case) -> list[Event]:
    """The events whose price the claim must cover: what ran and, after an early stop, T_max."""
    stated = case.stated()
    if not chunks(stated):
        found = [item["mechanism"] for item in stated["mechanisms"]]
        return [from_json(item) for item in found if item is not None]
    jobs, reserves = case.about("job"), case.about("reserve")
    ran = _ran(case)
    if ran is None:
        raise Skips("The noise log is not whole: nothing is computed from it.")
    job, reserved = _one(jobs), _one(reserves)
    if job["state"] == "succeeded" and job["steps"] == job["total_steps"]:
        return [ran]
    return [ran, from_json(reserved["mechanism"])]


def _lifetime(case: Case, guarantee: Mapping[str, Any], *, claimed: Decimal) -> str:
    """A ledger promises its cap (R7, R10)."""
    opened = _one(case.about("account"))
    if opened["neighboring"] != guarantee["neighboring"]:
        raise Fails(f"The account's cap is about {opened['neighboring']}.")
    if Decimal(opened["epsilon"]) > claimed or Decimal(opened["delta"]) > Decimal(
        guarantee["delta"]
    ):
        raise Fails(f"The account's cap is ε = {opened['epsilon']} at δ = {opened['delta']}.")
    return f"The account's cap: ε = {opened['epsilon']} at δ = {opened['delta']}."
