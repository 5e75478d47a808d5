"""dpledger, the service: a pure core, transaction scripts around it, thin doors outside."""
