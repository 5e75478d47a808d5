"""The DP-SGD programme: ``python -m workers.trainer --workdir DIR``, a process of its own.

It knows no queue and no database. It reads ``DIR/spec.json``, talks JSON lines with its
supervisor (``protocol.py``) and leaves artifacts in ``DIR/artifacts``. What must hold:

* A step is leased before its noise is drawn, and recorded as stored before anything that
  depends on it leaves the process.
* What executes is the schedule of the spec: these σ, these q, this C, this normaliser.
* Nothing but sealed fields of step records carries a function of un-noised private data:
  no message, no progress, no text on stderr.
"""
