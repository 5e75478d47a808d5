"""``python -m workers.trainer --workdir DIR [--parent-pid PID]``: the edge of the process."""

import argparse
import ctypes
import json
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Final, NoReturn

from service.core.errors import DomainError
from service.core.jobs import TrainingSpec
from workers.trainer.protocol import EXIT_ORPHANED, Peer, ProtocolError

_PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """Train what ``DIR/spec.json`` says; 0 after ``result`` or ``stopped``, 1 after ``failed``."""
    parser = argparse.ArgumentParser(prog="python -m workers.trainer")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--parent-pid", type=int, default=os.getppid())
    arguments = parser.parse_args()
    _die_with_parent(arguments.parent_pid)
    peer = _take_over_pipes()
    peer.listen()
    signal.signal(signal.SIGTERM, lambda *_: peer.request_stop("terminated"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    return _run(peer, arguments.workdir)


def _run(peer: Peer, workdir: Path) -> int:
    try:
        spec = TrainingSpec.from_json(json.loads((workdir / "spec.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, DomainError) as error:
        return _fail(peer, code="SPEC_INVALID", message=f"spec.json: {_described(error)}")
    # Late, so that a bad spec costs no seconds of imports.
    import torch  # noqa: PLC0415

    from workers.trainer.train import train  # noqa: PLC0415

    # True and harmless: the first layer's gradient is taken at its output, as Opacus wants it.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        train(spec, workdir=workdir, peer=peer)
    except DomainError as error:
        return _fail(peer, code=error.code, message=error.message)
    except ProtocolError as error:
        return _fail(peer, code="PROTOCOL_ERROR", message=str(error))
    except (MemoryError, torch.cuda.OutOfMemoryError):
        return _fail(peer, code="OUT_OF_MEMORY", message="Not enough memory on the device.")
    except Exception as error:  # noqa: BLE001 - the edge of the process
        # The frames alone: the text of an exception may quote a private value.
        sys.stderr.writelines(traceback.format_tb(error.__traceback__))
        return _fail(peer, code="INTERNAL", message=f"The trainer broke: {type(error).__name__}.")
    return 0


def _fail(peer: Peer, *, code: str, message: str) -> int:
    peer.failed(code=code, message=message)
    return 1


def _described(error: Exception) -> str:
    return error.message if isinstance(error, DomainError) else repr(error)


def _take_over_pipes() -> Peer:
    """Keep the supervisor's pipes to ourselves: what libraries print goes to stderr."""
    # Unbuffered: the reading thread then holds no lock that the end of the process waits for.
    read = os.fdopen(os.dup(0), "rb", buffering=0)
    write = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return Peer(read=read, write=write)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill us when the thread that started us ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call above
        _leave()


def _leave() -> NoReturn:
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
