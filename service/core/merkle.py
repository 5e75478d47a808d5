"""The Merkle tree of RFC 6962: roots, proofs, and appending without reading the leaves.

A tree over n leaves is fixed by n and its *complete* subtrees: the one at (level, position)
covers the leaves [position · 2^level, (position + 1) · 2^level) and never changes once it is
full. Whoever stores complete subtrees proves anything about any size from O(log² n) of them,
and whoever keeps the frontier (the roots of the largest ones) appends without reading any.

Hashes: a leaf is SHA-256(0x00 ‖ data), a node SHA-256(0x01 ‖ left ‖ right).
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

EMPTY_ROOT: Final = hashlib.sha256(b"").digest()
_HASH_BYTES: Final = 32


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """The place of a complete subtree: it covers 2^level leaves; level 0 is a leaf."""

    level: int
    position: int


#: Gives the hashes of complete subtrees, all in one call.
Fetch = Callable[[Sequence[Node]], Mapping[Node, bytes]]


@dataclass(frozen=True, slots=True)
class Frontier:
    """A tree as one who appends sees it: its size and its peaks, largest first.

    Args:
        size: leaves in it.
        peaks: roots of its maximal complete subtrees, one for each bit of ``size``.
    """

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        assert self.size >= 0
        assert len(self.peaks) == self.size.bit_count(), (self.size, len(self.peaks))

    @property
    def root(self) -> bytes:
        """The root of the tree."""
        return _folded(self.peaks)


def leaf_hash(data: bytes) -> bytes:
    """The hash of one leaf (RFC 6962, section 2.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees side by side (RFC 6962, section 2.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def append(frontier: Frontier, leaf: bytes) -> tuple[Frontier, tuple[tuple[Node, bytes], ...]]:
    """The tree with one leaf more, in O(log n).

    Args:
        frontier: the tree before.
        leaf: the hash of the new leaf.

    Returns:
        The new frontier, and the subtrees that the leaf completed: the leaf itself first.
    """
    peaks, here = list(frontier.peaks), leaf
    position = frontier.size
    done = [(Node(0, position), leaf)]
    level = 0
    while position & 1:
        here = node_hash(peaks.pop(), here)
        level, position = level + 1, position >> 1
        done.append((Node(level, position), here))
    return Frontier(frontier.size + 1, (*peaks, here)), tuple(done)


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over the hashes of all leaves, by the definition: an oracle, O(n)."""
    if not leaves:
        return EMPTY_ROOT
    if len(leaves) == 1:
        return leaves[0]
    k = _split(len(leaves))
    return node_hash(root(leaves[:k]), root(leaves[k:]))


def root_of(size: int, *, fetch: Fetch) -> bytes:
    """The root that the tree had at ``size`` leaves."""
    return EMPTY_ROOT if size == 0 else _hashes([(0, size)], fetch)[0]


def inclusion_proof(index: int, *, size: int, fetch: Fetch) -> tuple[bytes, ...]:
    """The audit path of a leaf in the tree of ``size`` leaves, from the leaf to the root.

    Source: RFC 6962, section 2.1.1.
    """
    assert 0 <= index < size, (index, size)
    return _hashes(list(_path(index, 0, size)), fetch)


def consistency_proof(old: int, *, new: int, fetch: Fetch) -> tuple[bytes, ...]:
    """The proof that the tree of ``old`` leaves is the beginning of that of ``new``.

    Source: RFC 6962, section 2.1.2.
    """
    assert 0 <= old <= new, (old, new)
    if old in (0, new):
        return ()
    return _hashes(list(_subproof(old, 0, new, whole=True)), fetch)


def verify_inclusion(
    leaf: bytes, *, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """True if ``proof`` leads from the leaf's hash at ``index`` to ``root``.

    Source: RFC 9162, section 2.1.3.2.
    """
    if not 0 <= index < size or any(len(h) != _HASH_BYTES for h in proof):
        return False
    at, last, here = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            here = node_hash(sibling, here)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            here = node_hash(here, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and hmac.compare_digest(here, root)


def verify_consistency(  # noqa: C901 - the algorithm of the RFC in one piece
    old: int, *, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """True if ``proof`` shows that the older tree is the beginning of the newer one.

    Source: RFC 9162, section 2.1.4.2.
    """
    if not 0 <= old <= new or any(len(h) != _HASH_BYTES for h in proof):
        return False
    if old == new:
        return not proof and hmac.compare_digest(old_root, new_root)
    if old == 0:
        return not proof and hmac.compare_digest(old_root, EMPTY_ROOT)
    path = list(proof)
    if old & (old - 1) == 0:
        path.insert(0, old_root)
    if not path:
        return False
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        at, last = at >> 1, last >> 1
    return (
        last == 0 and hmac.compare_digest(first, old_root) and hmac.compare_digest(second, new_root)
    )


def _path(index: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges whose roots make up an audit path, from the leaf upwards."""
    if end - start == 1:
        return
    k = start + _split(end - start)
    if index < k:
        yield from _path(index, start, k)
        yield (k, end)
    else:
        yield from _path(index, k, end)
        yield (start, k)


def _subproof(old: int, start: int, end: int, *, whole: bool) -> Iterator[tuple[int, int]]:
    """SUBPROOF of RFC 6962: ranges for the first ``old`` of the leaves [start, end)."""
    if old == end - start:
        if not whole:
            yield (start, end)
        return
    k = _split(end - start)
    if old <= k:
        yield from _subproof(old, start, start + k, whole=whole)
        yield (start + k, end)
    else:
        yield from _subproof(old - k, start + k, end, whole=False)
        yield (start, start + k)


def _hashes(ranges: Sequence[tuple[int, int]], fetch: Fetch) -> tuple[bytes, ...]:
    """The roots of ranges that begin at a multiple of a power of two not below their size."""
    wanted = [tuple(_complete(start, end)) for start, end in ranges]
    found = fetch(sorted({node for nodes in wanted for node in nodes}))
    return tuple(_folded([found[node] for node in nodes]) for nodes in wanted)


def _complete(start: int, end: int) -> Iterator[Node]:
    """The complete subtrees that make up [start, end), largest first."""
    while start < end:
        level = (end - start).bit_length() - 1
        assert start % (1 << level) == 0, (start, end)
        yield Node(level, start >> level)
        start += 1 << level


def _folded(peaks: Sequence[bytes]) -> bytes:
    if not peaks:
        return EMPTY_ROOT
    here = peaks[-1]
    for peak in reversed(peaks[:-1]):
        here = node_hash(peak, here)
    return here


def _split(size: int) -> int:
    """The largest power of two below ``size``."""
    return 1 << ((size - 1).bit_length() - 1)
