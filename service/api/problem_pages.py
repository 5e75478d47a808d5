"""``/problems/<slug>``: what an error code means and what to do, for people."""

from html import escape
from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.core.errors import NotFound

#: Every problem code that the service answers, with what to do about it.
MEANINGS: Final = {
    "ACCOUNTANT_NUMERICAL_FAILURE": "The accountant that was asked for failed on these numbers. "
    "Use the accountant auto, which is ours and certified.",
    "ACCOUNT_OVERDRAWN": "More ran than was reserved, or more was spent than the cap: nothing is "
    "certified on this budget any more",
    "ALREADY_SETTLED": "The reservation has been settled; a settlement is final.",
    "BAD_JSON": "The body is not JSON in UTF-8, or is nested too deep.",
    "BAD_TEXT": "A text holds a NUL character or half of a surrogate pair.",
    "BODY_TOO_LARGE": "Send a smaller body; the limit stands in the message.",
    "CALCULATION_TOO_LONG": "No certified answer was found within the time limit.",
    "CANCEL_REQUESTED": "The job is being cancelled and starts nothing new.",
    "CERTIFICATE_ENDED": "The certificate was revoked or superseded; that is final.",
    "CERTIFICATE_EXISTS": "The check is certified already. Name that certificate in supersedes "
    "to renew it.",
    "CHECK_NOT_SUPPORTED": "Only a check with the verdict supported can be certified. Its "
    "strongest_supported_claim says what would be.",
    "CHECK_SEALED": "The check examined sealed data, and a certificate would tell its outcome to "
    "everybody. Make the same check without examine_sealed.",
    "CONFLICT": "The present state of the object forbids the request.",
    "DATASET_EXISTS": "This tenant has a dataset with the same fingerprint already: one set of "
    "records has one budget, whatever it is called.",
    "DUPLICATE_KEY": "A key stands twice in one JSON object; which one counts would be a guess.",
    "HOST_NOT_ALLOWED": "The Host header is not on the allow-list DPLEDGER_ALLOWED_HOSTS.",
    "IDEMPOTENCY_KEY_INVALID": "Use 1 to 255 printable ASCII characters.",
    "IDEMPOTENCY_KEY_REQUIRED": "Send a new Idempotency-Key with each new request, and the same "
    "one when you repeat a request whose answer was lost.",
    "IDEMPOTENCY_KEY_REUSED": "The key was used with another body; take a new key.",
    "INCONSISTENT": "Fields contradict each other; the message says which.",
    "INTERNAL_ERROR": "A fault of the service. The request id finds it in the log.",
    "INVALID_STATE": "A resource in this state does not do that.",
    "KEY_ENDED": "The API key has expired or was revoked.",
    "LEASE_EXCEEDS_RESERVATION": "More steps were asked for than the reservation has left.",
    "LEASE_FENCED": "Another lease was given since; the holder of this token has lost the run.",
    "LOG_BUSY": "Other uploads to the same run were recorded first; send this one again.",
    "LOG_INCOMPLETE": "The log does not show the whole run, so nothing rests on it.",
    "MALFORMED": "The text does not have the form that it should have.",
    "METHOD_NOT_ALLOWED": "The path exists, the method does not.",
    "MIGRATION_PENDING": "The database is older than the service: run its migrations.",
    "MISSING_FIELD": "A required field is missing.",
    "MISSING_SCOPE": "The API key lacks the scope that the message names.",
    "NON_FINITE_NUMBER": "NaN, Infinity and numbers beyond a float are refused.",
    "NOT_ACCEPTABLE": "The resource has none of the forms that the Accept header names.",
    "NOT_CANONICAL": "The value has no canonical JSON form, so it cannot be hashed or signed.",
    "NOT_CERTIFIED": "No certified answer exists within the limits; a guess is never given.",
    "NOT_FOUND": "There is no such object for this tenant.",
    "NOT_SETTLED": "The job is not settled yet; its artifacts appear when it is.",
    "OUT_OF_RANGE": "A value lies outside its limits.",
    "PRECONDITION_FAILED": "The object has changed since you read it; read it again.",
    "PRECONDITION_REQUIRED": "Send If-Match with the ETag of what you read.",
    "PRIVACY_BUDGET_EXCEEDED": "The reservation would pass the cap of a budget. Nothing was "
    "charged. The answer says what would fit.",
    "RESERVATION_EXPIRED": "The reservation has expired; steps never leased went back.",
    "RESERVATION_HAS_RUN": "Another run is charged to the reservation; each run has its own.",
    "RESERVATION_OF_JOB": "A training job holds the reservation; only its worker moves it. Cancel "
    "the job to give back what was never leased.",
    "RESERVATION_OF_RUN": "A run logs what the reservation pays for; complete the run, and its log "
    "says what is charged.",
    "RUN_ENDED": "The run is completed or abandoned; its log is closed and its charge is final.",
    "SEQUENCE_GAP": "Step records must follow each other without a gap.",
    "SIGNING_KEY_REVOKED": "The installation's signing key was revoked: its operator has to "
    "rotate it (python -m service rotate-signing-key).",
    "STEP_ALREADY_RECORDED": "This step was recorded before, with other values.",
    "SUBJECT_NOT_CERTIFIED": "Nobody could verify a certificate about this subject: only training "
    "jobs and stated parameters have one.",
    "TARGET_UNREACHABLE": "No noise multiplier, or no number of steps, reaches the target.",
    "UNAUTHENTICATED": "Send Authorization: Bearer with a good API key.",
    "UNAVAILABLE": "A part is away for the moment; nothing was changed. Try again.",
    "UNKNOWN": "The name is not one of those that exist; the message lists them.",
    "UNKNOWN_FIELD": "The field does not exist; the message may know which one you meant.",
    "UNSUPPORTED": "The service cannot do this; the message says what it can do.",
    "UNSUPPORTED_MEDIA_TYPE": "Send the Content-Type header that the message names.",
    "URL_NOT_ALLOWED": "The address is not on the allow-list of data sources.",
    "WRONG_TYPE": "The value has another JSON type than the field.",
}

router = APIRouter(include_in_schema=False)


@router.get("/problems/{slug}")
def problem_page(slug: str) -> HTMLResponse:
    """One page a code."""
    code = slug.upper().replace("-", "_")
    meaning = MEANINGS.get(code)
    if meaning is None:
        raise NotFound("There is no such problem.")
    return HTMLResponse(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(code)}</title>"
        f"<h1>{escape(code)}</h1><p>{escape(meaning)}</p></html>"
    )
