"""dpledger, the service: a pure core, transaction scripts around it, thin doors outside."""

__version__ = "0.1.0"
