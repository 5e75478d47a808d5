"""Randomness that privacy rests on: a cryptographic keystream and Gaussians made from it.

The keystream is AES-256 in counter mode. Under ``os_entropy`` its key comes from the operating
system and is never written down; under ``reproducible`` it is derived from the seed, and the
run proves nothing to anybody who might know the seed.

Floating point, honestly: normals are made in float64 from 53-bit uniforms (Box-Muller), added
to the float64 sum, and only then rounded to the float32 of the model, so that each released
value stands for some 2^29 neighbours of the finer grid and the gaps of the fine grid
(Mironov 2012) are not visible one by one. That is a mitigation, not a proof: the discrete
Gaussian would be one. The tails end at 8.58 σ, which moves δ by less than 1e-16 a coordinate.
"""

import hashlib
import os
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

FLOAT_SAFETY: Final = "float64 Box-Muller on AES-256-CTR, rounded to float32 after the addition"

_BLOCK: Final = 1 << 20
_KEY_BYTES: Final = 32


class Keystream:
    """An endless stream of pseudorandom bytes from one 256-bit key; never restarted."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == _KEY_BYTES
        # Zero is a sound first counter because a key serves one keystream only.
        self._stream: CipherContext = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next ``count`` uniform 64-bit words."""
        out = np.empty(count, dtype=np.uint64)
        step = _BLOCK // 8
        for start in range(0, count, step):
            part = min(step, count - start)
            block = self._stream.update(bytes(8 * part))
            out[start : start + part] = np.frombuffer(block, dtype="<u8")
        return out

    def normals(self, count: int) -> NDArray[np.float64]:
        """The next ``count`` standard normals, float64, independent, by Box and Muller (1958)."""
        pairs = (count + 1) // 2
        words = self.words(2 * pairs)
        # 53 bits fill a double's significand exactly: u in (0, 1], v in [0, 1).
        u = ((words[:pairs] >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
        v = (words[pairs:] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log(u))
        angle = (2.0 * np.pi) * v
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def open_keystream(purpose: str, *, seed: int | None) -> Keystream:
    """A keystream for one ``purpose``, with a key of its own.

    Args:
        purpose: keeps streams of one seed apart (``"noise"``, ``"sampling"``, ``"init"``).
        seed: None for a fresh key of the operating system, else the seed of a reproducible run.
    """
    if seed is None:
        return Keystream(os.urandom(_KEY_BYTES))
    label = f"dpledger trainer v1/{purpose}/{seed}".encode()
    return Keystream(hashlib.sha256(label).digest())
