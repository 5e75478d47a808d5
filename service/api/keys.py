"""/v1/api-keys: create, list, rotate, revoke."""

from fastapi import APIRouter, Response

from service.api.deps import Caller, holds
from service.api.lists import After, answer_list
from service.api.strict import StrictRoute
from service.db import tables
from service.operations import keys
from service.operations.owned import get_owned, owned
from service.schemas.keys import ApiKey, ApiKeyCreate
from service.schemas.lists import Limit, ListOf

router = APIRouter(prefix="/v1/api-keys", tags=["API keys"], route_class=StrictRoute)
KEYS = holds("keys:admin")


@router.post("", status_code=201, response_model=ApiKey)
def create_api_key(body: ApiKeyCreate, caller: Caller = KEYS) -> Response:
    """Create a key; the answer is the only place where its secret is ever shown."""
    return caller.write(
        lambda session: keys.create_key(
            session,
            caller.principal,
            name=body.name,
            scopes=body.scopes,
            expires_at=body.expires_at,
            tenant=body.tenant,
        ),
        shape=_fresh,
        replay=_without_secret,
        dry_run=body.validate_only,
    )


@router.get("", response_model=ListOf[ApiKey])
def list_api_keys(limit: Limit = 20, after: After = None, caller: Caller = KEYS) -> Response:
    """The tenant's keys, newest first."""
    return answer_list(
        caller, owned(caller.principal, tables.ApiKey), tables.ApiKey, _shape, limit, after
    )


@router.get("/{key_id}", response_model=ApiKey)
def get_api_key(key_id: str, caller: Caller = KEYS) -> Response:
    """One key, without its secret."""
    return caller.show(
        lambda session: get_owned(session, caller.principal, tables.ApiKey, key_id), shape=_shape
    )


@router.post("/{key_id}/rotate", response_model=ApiKey)
def rotate_api_key(key_id: str, caller: Caller = KEYS) -> Response:
    """Give the key a new secret; the old one ends at once."""
    return caller.write(
        lambda session: keys.rotate_key(session, caller.principal, key_id=key_id),
        shape=_fresh,
        replay=_without_secret,
        status=200,
    )


@router.delete("/{key_id}", response_model=ApiKey)
def revoke_api_key(key_id: str, caller: Caller = KEYS) -> Response:
    """End the key for ever."""
    return caller.write(
        lambda session: keys.revoke_key(session, caller.principal, key_id=key_id),
        shape=_shape,
        status=200,
        key_required=False,
    )


def _shape(row: tables.ApiKey) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        tenant=row.tenant_id,
        scopes=row.scopes,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


def _without_secret(fresh: keys.FreshKey) -> ApiKey:
    # A stored answer would keep the secret in the database, where only its hash may be.
    return _shape(fresh.row)


def _fresh(fresh: keys.FreshKey) -> ApiKey:
    return _shape(fresh.row).model_copy(update={"secret": fresh.token})
