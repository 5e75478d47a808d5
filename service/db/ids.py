"""Ids: a prefix that says what it is, and a ULID that sorts by time."""

from typing import Literal

from ulid import ULID

Prefix = Literal[
    "ds", "blk", "res", "adj", "ent", "job", "swp", "run", "chk", "cert", "aud", "key", "evt", "req"
]


def new_id(prefix: Prefix) -> str:
    """A fresh id such as ``ds_01JD…``; unique without asking anybody."""
    return f"{prefix}_{ULID()}"
