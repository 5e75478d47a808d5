"""The trainer's end of the pipe keeps to the protocol, whatever the other end says."""

import io
import json
import queue

import pytest

from workers.trainer.protocol import Peer, ProtocolError, Stopped


class Pipe:
    """Lines that arrive when the test says so; ``b""`` is the end."""

    def __init__(self):
        self.lines = queue.SimpleQueue()

    def readline(self):
        return self.lines.get()


class Conversation:
    def __init__(self):
        self.pipe, self.sent = Pipe(), io.BytesIO()
        self.left = queue.SimpleQueue()
        self.now = 100.0
        self.peer = Peer(
            read=self.pipe,
            write=self.sent,
            leave=lambda: self.left.put("gone"),
            clock=lambda: self.now,
        )
        self.peer.listen()

    def reply(self, **message):
        self.pipe.lines.put(json.dumps(message).encode() + b"\n")

    @property
    def messages(self):
        return [json.loads(line) for line in self.sent.getvalue().splitlines()]


@pytest.fixture
def talk():
    conversation = Conversation()
    yield conversation
    conversation.pipe.lines.put(b"")


def test_a_lease_is_asked_for_and_its_end_is_what_was_granted(talk):
    talk.reply(type="leased", first_step=4, end_step=7)
    assert talk.peer.lease(4, steps=8) == 7
    assert talk.messages == [{"type": "lease", "first_step": 4, "steps": 8}]


@pytest.mark.parametrize(
    "reply",
    [
        {"type": "leased", "first_step": 5, "end_step": 8},
        {"type": "leased", "first_step": 4, "end_step": 13},
        {"type": "leased", "first_step": 4, "end_step": 4},
        {"type": "leased", "first_step": 4, "end_step": 8.0},
        {"type": "leased", "first_step": 4},
        {"type": "stored", "next_step": 4},
        {"type": "hello"},
        {},
        [],
    ],
)
def test_a_reply_that_is_no_lease_is_refused(talk, reply):
    talk.pipe.lines.put(json.dumps(reply).encode() + b"\n")
    with pytest.raises(ProtocolError):
        talk.peer.lease(4, steps=8)


def test_a_line_that_is_no_json_is_refused(talk):
    talk.pipe.lines.put(b"{not json\n")
    with pytest.raises(ProtocolError):
        talk.peer.lease(0, steps=1)


def test_other_steps_stored_than_sent_is_refused(talk):
    talk.peer.send_records([{"step": 0}])
    talk.reply(type="stored", next_step=2)
    with pytest.raises(ProtocolError):
        talk.peer.await_stored(1)


@pytest.mark.parametrize("ask", ["lease", "await_stored"])
def test_a_stop_in_place_of_a_reply_stops(talk, ask):
    talk.reply(type="stop", reason="deadline")
    with pytest.raises(Stopped) as caught:
        talk.peer.lease(0, steps=1) if ask == "lease" else talk.peer.await_stored(1)
    assert caught.value.reason == "deadline"


def test_after_a_stop_no_lease_is_asked_for(talk):
    talk.peer.request_stop("terminated")
    with pytest.raises(Stopped):
        talk.peer.lease(0, steps=1)
    assert talk.messages == []


def test_progress_is_told_at_most_twice_a_second(talk):
    for step in range(100):
        talk.now += 0.125
        talk.peer.progress(step)
    assert [m["step"] for m in talk.messages] == [*range(0, 100, 4)]


def test_the_end_of_the_input_leaves_at_once(talk):
    talk.pipe.lines.put(b"")
    assert talk.left.get(timeout=10) == "gone"


def test_a_broken_pipe_leaves_at_once(talk):
    class Broken:
        def write(self, _data, /):
            raise BrokenPipeError

        def flush(self):
            pass

    alone = Peer(read=talk.pipe, write=Broken(), leave=lambda: talk.left.put("gone"))
    alone.ready({})
    assert talk.left.get(timeout=10) == "gone"


def test_a_number_that_json_cannot_say_is_never_sent(talk):
    with pytest.raises(ValueError, match="JSON"):
        talk.peer.send_records([{"step": 0, "sealed": {"loss": float("nan")}}])
    assert talk.messages == []
