"""Is it alive, is it ready, what is it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text

from service import __version__
from service.api.deps import Parts, parts_of
from service.api.problems import problem
from service.db.migrations.run import at_head

router = APIRouter(tags=["Service"])


@router.get("/livez")
async def livez() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(request: Request, parts: Annotated[Parts, Depends(parts_of)]) -> Response:
    """The database answers and its tables are the ones that this version needs."""
    with parts.database.read() as session:
        session.execute(text("select 1"))
        ready = at_head(session.connection())
    if not ready:
        return problem(
            request,
            status=503,
            code="MIGRATION_PENDING",
            detail="The database needs: python -m service migrate",
            retryable=True,
        )
    return JSONResponse({"status": "ok"})


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """Figures for Prometheus; none of them names a tenant or a dataset."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/meta")
def meta() -> dict[str, str]:
    """Name and version of the service and of its wire contract."""
    return {"object": "meta", "name": "dpledger", "version": __version__, "api_version": "v1"}
