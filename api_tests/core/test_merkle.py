"""The Merkle tree against its definition, the RFC's vectors and another library."""

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymerkle import InmemoryTree, InvalidProof
from pymerkle import verify_consistency as pymerkle_consistency
from pymerkle import verify_inclusion as pymerkle_inclusion

from service.core import merkle
from service.core.merkle import Frontier, Node

# The test vectors of RFC 6962 implementations (certificate-transparency: merkle_tree_test).
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


class Tree:
    """What the service stores: the frontier and every complete subtree."""

    def __init__(self, count=0):
        self.frontier = Frontier()
        self.nodes = {}
        self.leaves = []
        self.fetched = 0
        for number in range(count):
            self.add(str(number).encode())

    def add(self, data):
        leaf = merkle.leaf_hash(data)
        self.leaves.append(leaf)
        self.frontier, done = merkle.append(self.frontier, leaf)
        self.nodes.update(done)

    def fetch(self, wanted):
        self.fetched += len(wanted)
        return {node: self.nodes[node] for node in wanted}


def test_the_roots_are_those_of_the_rfc():
    tree = Tree()
    assert tree.frontier.root.hex() == hashlib.sha256(b"").hexdigest()
    for data, expected in zip(LEAVES, ROOTS, strict=True):
        tree.add(data)
        assert tree.frontier.root.hex() == expected
        assert merkle.root(tree.leaves).hex() == expected


@given(size=st.integers(0, 200), later=st.integers(0, 200))
def test_appending_gives_the_tree_of_the_definition_and_remembers_older_ones(size, later):
    tree = Tree(size + later)
    assert tree.frontier.root == merkle.root(tree.leaves)
    assert merkle.root_of(size, fetch=tree.fetch) == merkle.root(tree.leaves[:size])


def test_appending_completes_about_one_subtree_for_each_leaf():
    tree = Tree(1024)
    assert len(tree.nodes) == 2047
    assert tree.nodes[Node(10, 0)] == tree.frontier.root


@given(data=st.data(), size=st.integers(1, 300))
def test_every_leaf_can_be_proved_and_nothing_else_can(data, size):
    tree = Tree(size)
    index = data.draw(st.integers(0, size - 1))
    proof = merkle.inclusion_proof(index, size=size, fetch=tree.fetch)
    facts = {"index": index, "size": size, "proof": proof, "root": tree.frontier.root}
    assert merkle.verify_inclusion(tree.leaves[index], **facts)
    assert not merkle.verify_inclusion(merkle.leaf_hash(b"another"), **facts)
    assert not merkle.verify_inclusion(tree.leaves[index], **{**facts, "root": bytes(32)})
    assert not merkle.verify_inclusion(
        tree.leaves[index], **{**facts, "proof": (*proof, bytes(32))}
    )
    assert not merkle.verify_inclusion(tree.leaves[index], **{**facts, "index": size})
    assert not merkle.verify_inclusion(tree.leaves[index], **{**facts, "index": -1})
    if proof:
        assert not merkle.verify_inclusion(tree.leaves[index], **{**facts, "proof": proof[:-1]})
        short = (*proof[:-1], proof[-1][:31])
        assert not merkle.verify_inclusion(tree.leaves[index], **{**facts, "proof": short})
    other = data.draw(st.integers(0, size - 1))
    if other != index:
        assert not merkle.verify_inclusion(tree.leaves[index], **{**facts, "index": other})


@given(data=st.data(), new=st.integers(1, 300))
def test_an_older_tree_is_proved_to_be_the_beginning_of_a_newer_one(data, new):
    tree = Tree(new)
    old = data.draw(st.integers(1, new))
    proof = merkle.consistency_proof(old, new=new, fetch=tree.fetch)
    facts = {
        "new": new,
        "old_root": merkle.root(tree.leaves[:old]),
        "new_root": tree.frontier.root,
        "proof": proof,
    }
    assert merkle.verify_consistency(old, **facts)
    assert not merkle.verify_consistency(old, **{**facts, "new_root": bytes(32)})
    assert not merkle.verify_consistency(old, **{**facts, "old_root": bytes(32)})
    assert not merkle.verify_consistency(old, **{**facts, "proof": (*proof, bytes(32))})
    assert not merkle.verify_consistency(new + 1, **facts)
    if proof:
        assert not merkle.verify_consistency(old, **{**facts, "proof": proof[:-1]})
        assert not merkle.verify_consistency(old, **{**facts, "proof": ()})


@given(data=st.data(), size=st.integers(2, 60))
def test_a_fork_has_no_consistency_proof(data, size):
    honest, forked = Tree(size), Tree()
    changed = data.draw(st.integers(0, size - 2))
    old = data.draw(st.integers(changed + 1, size - 1))
    for number in range(size):
        forked.add(b"edited" if number == changed else str(number).encode())
    assert not merkle.verify_consistency(
        old,
        new=size,
        old_root=merkle.root(honest.leaves[:old]),
        new_root=forked.frontier.root,
        proof=merkle.consistency_proof(old, new=size, fetch=forked.fetch),
    )


@given(size=st.integers(2, 80), data=st.data())
def test_R_log_edit_delete_insert_and_reorder_give_another_root(size, data):
    tree = Tree(size)
    at = data.draw(st.integers(0, size - 2))
    whole = tree.leaves
    edited = [*whole[:at], merkle.leaf_hash(b"x"), *whole[at + 1 :]]
    deleted = [*whole[:at], *whole[at + 1 :]]
    inserted = [*whole[:at], merkle.leaf_hash(b"x"), *whole[at:]]
    reordered = [*whole[:at], whole[at + 1], whole[at], *whole[at + 2 :]]
    roots = {merkle.root(leaves) for leaves in (whole, edited, deleted, inserted, reordered)}
    assert len(roots) == 5


@settings(max_examples=30)
@given(size=st.integers(1, 40), data=st.data())
def test_another_library_builds_and_verifies_the_same(size, data):
    tree, theirs = Tree(size), InmemoryTree(algorithm="sha256")
    for number in range(size):
        theirs.append_entry(str(number).encode())
    assert theirs.get_root() == tree.frontier.root
    index = data.draw(st.integers(0, size - 1))
    proof = theirs.prove_inclusion(index + 1)
    assert tuple(proof.path[1:]) == merkle.inclusion_proof(index, size=size, fetch=tree.fetch)
    pymerkle_inclusion(tree.leaves[index], tree.frontier.root, proof)
    with pytest.raises(InvalidProof):
        pymerkle_inclusion(bytes(32), tree.frontier.root, proof)
    old = data.draw(st.integers(1, size))
    old_root = merkle.root(tree.leaves[:old])
    pymerkle_consistency(old_root, tree.frontier.root, theirs.prove_consistency(old, size))


def test_a_proof_reads_few_subtrees():
    tree = Tree(5000)
    for index in (0, 1, 2500, 4998, 4999):
        tree.fetched = 0
        merkle.inclusion_proof(index, size=4999 if index < 4999 else 5000, fetch=tree.fetch)
        assert tree.fetched <= 26
    tree.fetched = 0
    merkle.consistency_proof(3001, new=5000, fetch=tree.fetch)
    assert tree.fetched <= 26


def test_a_frontier_of_the_wrong_shape_is_no_frontier():
    with pytest.raises(AssertionError):
        Frontier(3, (bytes(32),))


def test_sizes_and_frontiers_grow_together():
    sizes = [Tree(n).frontier for n in (0, 1, 2, 3, 7, 8)]
    assert [len(f.peaks) for f in sizes] == [0, 1, 1, 2, 3, 1]
    assert all(a.root != b.root for a, b in pairwise(sizes))
