"""What users import into their own pipelines."""

from dpledger.client import Client
from dpledger.errors import ApiError, ClientError, Unreachable

__all__ = ["ApiError", "Client", "ClientError", "Unreachable"]
