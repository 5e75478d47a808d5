"""The pure core: no I/O, clock, randomness, environment, logging or pydantic."""
