"""What is said of a checkpoint or a bundle that nobody's key speaks for."""

import pytest

from dpledger import verify
from dpledger.errors import ClientError

NOTE = "log\n1\n" + "A" * 43 + "=\n\n— log AAAAAAAA\n"


def test_a_saved_key_list_may_be_older_than_the_key_and_a_fresh_one_is_not():
    with pytest.raises(ClientError, match="the list may be older than the key: fetch"):
        verify.opened(NOTE, keys=(), saved_list=True)
    with pytest.raises(ClientError, match=r"is on the checkpoint\.$"):
        verify.opened(NOTE, keys=())


def test_a_bundle_without_a_readable_statement_certifies_nothing():
    assert verify.certified({}) is None
    assert verify.certified({"envelope.json": b"{}"}) is None


def test_a_folder_is_read_with_the_names_of_its_files(tmp_path):
    (tmp_path / "leaves").mkdir()
    (tmp_path / "leaves" / "0.json").write_bytes(b"{}")
    assert verify.read_bundle(tmp_path) == {"leaves/0.json": b"{}"}
