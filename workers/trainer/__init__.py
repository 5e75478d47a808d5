"""The DP-SGD programme: torch and opacus, no queue, no database."""
