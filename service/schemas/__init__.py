"""The wire: pydantic models used by the API, the client and the CLI."""
