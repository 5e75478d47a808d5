"""``python -m dpledger`` is the command ``dpledger``."""

from dpledger.cli import main

main()
