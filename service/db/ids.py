"""Ids: a prefix that says what it is, and a ULID that sorts by time."""

import re
from typing import Final, Literal

from ulid import ULID

Prefix = Literal[
    "ds",
    "blk",
    "res",
    "adj",
    "ent",
    "job",
    "swp",
    "run",
    "chk",
    "cert",
    "aud",
    "key",
    "evt",
    "req",
    "read",
]

_ID: Final = re.compile(r"[a-z]{2,4}_[0-9A-HJKMNP-TV-Z]{26}\Z")


def new_id(prefix: Prefix) -> str:
    """A fresh id such as ``ds_01JD…``; unique without asking anybody."""
    return f"{prefix}_{ULID()}"


def is_id(text: str) -> bool:
    """True if ``text`` has the form of an id; anything else is not worth a query."""
    return _ID.match(text) is not None
