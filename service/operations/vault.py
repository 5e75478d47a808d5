"""Where the objects of noise logs lie, and what opens the sealed ones."""

from dataclasses import dataclass

from service.objects import ObjectStore
from service.sealing import Sealer


@dataclass(frozen=True, slots=True)
class Vault:
    """Where the chunks of noise logs lie, and what opens the sealed ones."""

    objects: ObjectStore
    sealer: Sealer
