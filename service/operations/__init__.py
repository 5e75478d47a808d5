"""Transaction scripts: load and lock rows, call the core, store, flush; never commit."""
