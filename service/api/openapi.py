"""The OpenAPI document: real problems in place of FastAPI's default 422, docs served locally."""

from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

_ASSETS: Final = str(files("fastapi_offline") / "static")
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "An error as RFC 9457 describes it.",
    "required": ["type", "title", "status", "detail", "instance", "code", "request_id"],
    "properties": {
        "type": {"type": "string", "examples": ["/problems/out-of-range"]},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "code": {"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"},
        "request_id": {"type": "string"},
        "retryable": {"type": "boolean"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "code", "message"],
                "properties": {
                    "pointer": {"type": "string", "description": "RFC 6901, into the body."},
                    "parameter": {"type": "string"},
                    "code": {"type": "string"},
                    "message": {"type": "string"},
                },
            },
        },
    },
}
_ANSWERS: Final = {
    "400": "The request cannot be read.",
    "401": "No usable API key.",
    "403": "The key lacks a scope.",
    "404": "Unknown, or another tenant's.",
    "406": "Not to be had in a media type of Accept.",
    "409": "The present state forbids it.",
    "412": "The object has changed.",
    "413": "The body is too large.",
    "415": "The body has another content type.",
    "422": "Readable but not valid.",
    "428": "If-Match is missing.",
    "503": "A part is away; try again.",
}
_WITHOUT_KEY: Final = (
    "/v1/meta",
    "/v1/certificates/verify",
    "/v1/certificates/{certificate_id}/status",
)
_IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A text that is new for each new request; required where budget can move.",
    "schema": {"type": "string", "maxLength": 255},
}

_IF_MATCH: Final[dict[str, Any]] = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The ETag that you last saw: 412 if the object has changed since.",
    "schema": {"type": "string"},
}


def install(app: FastAPI) -> None:
    """Serve ``/docs`` from our own files and write problems into the document."""
    app.mount("/docs/assets", StaticFiles(directory=_ASSETS), name="docs-assets")

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=f"{app.title}: API",
            swagger_js_url="/docs/assets/swagger-ui-bundle.js",
            swagger_css_url="/docs/assets/swagger-ui.css",
            swagger_favicon_url="/docs/assets/favicon.png",
        )

    app.openapi = _document(app)


def _document(app: FastAPI) -> Callable[[], dict[str, Any]]:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_problems(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                    license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
                    servers=[{"url": "/"}],
                )
            )
        return app.openapi_schema

    return document


def _with_problems(document: dict[str, Any]) -> dict[str, Any]:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Problem"] = _PROBLEM
    components["securitySchemes"] = {
        "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, dpl_…"}
    }
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if not path.startswith("/v1/"):
                operation["security"] = []
                continue
            operation["security"] = [] if path in _WITHOUT_KEY else [{"apiKey": []}]
            if method == "post":
                operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
            if method == "patch":
                operation.setdefault("parameters", []).append(_IF_MATCH)
            for status, description in _ANSWERS.items():
                operation["responses"][status] = {"description": description, "content": content}
    return document
