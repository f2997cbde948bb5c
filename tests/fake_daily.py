"""daily-python's native client, scripted: the cloud behind it cannot be had here.

Only what pipecat's transport uses, with the documented semantics: methods return at once and call
`completion` later; completions and events come from a thread of the client's own, one at a time;
who is in the room before is announced after the join; a client that is released is in no room.
"""

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pipecat.transports.daily import transport as pipecat_daily


class FakeDailyRoom:
    """What the cloud holds: who is there, and what the bot does. A test scripts it.

    Attributes:
        clients: Every client that was made, the newest last.
        people: Participant id to its facts.
        join_error: What a join is answered with.
    """

    def __init__(self) -> None:
        self.clients: list[FakeCallClient] = []
        self.people: dict[str, dict[str, Any]] = {}
        self.join_error: str | None = None
        self.news = threading.Condition()

    def note(self) -> None:
        with self.news:
            self.news.notify_all()

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        """Wait in a thread until something that a client did makes the condition true."""
        with self.news:
            assert self.news.wait_for(condition, timeout_s), "it did not happen"
            return condition()

    @property
    def client(self) -> "FakeCallClient":
        return self.clients[-1]

    @property
    def joined(self) -> "FakeCallClient | None":
        """The client that is in the room."""
        return next((c for c in self.clients if c.state == "joined"), None)

    def come(self, name: str) -> None:
        self.people[name] = {"id": name, "info": {"userName": name}, "media": {}}
        if client := self.joined:
            client.event("on_participant_joined", self.people[name])

    def go(self, name: str, reason: str = "leftCall") -> None:
        person = self.people.pop(name)
        if client := self.joined:
            client.event("on_participant_left", person, reason)

    def install(self, monkeypatch: Any) -> None:
        """Put this room behind pipecat's transport."""
        monkeypatch.setattr(
            pipecat_daily, "CallClient", lambda event_handler: FakeCallClient(self, event_handler)
        )
        monkeypatch.setattr(pipecat_daily, "CustomAudioSource", lambda *_: FakeAudioSource(self))
        monkeypatch.setattr(
            pipecat_daily, "CustomAudioTrack", lambda source: SimpleNamespace(id="track")
        )
        monkeypatch.setattr(pipecat_daily.Daily, "init", lambda: None)
        monkeypatch.setattr(pipecat_daily.DailyTransportClient, "_daily_initialized", True)


class FakeAudioSource:
    """Takes the bot's sound."""

    def __init__(self, room: FakeDailyRoom):
        self._room = room

    def write_frames(self, frames: bytes, completion: Callable[[int], None]) -> None:
        client = self._room.client
        client.heard += frames
        self._room.note()
        client.later(completion, len(frames) // 2)


class FakeCallClient:
    """One client. Its thread lives from the first call to `release`."""

    def __init__(self, room: FakeDailyRoom, events: Any):
        self.room = room
        self.state = "initialized"
        self.token: str | None = None
        self.url = self.name = ""
        self.heard = b""
        self.messages: list[tuple[dict[str, Any], str | None]] = []
        self.renderers: dict[str, Callable[..., None]] = {}
        self.transcribed: list[str] | None = None
        self.released = False
        self._events = events
        self._jobs: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="daily", daemon=True)
        self._thread.start()
        room.clients.append(self)

    def later(self, function: Callable[..., Any] | None, *args: Any) -> None:
        if function is not None:
            self._jobs.put((function, args))

    def event(self, kind: str, *args: Any) -> None:
        self.later(getattr(self._events, kind), *args)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, args = job
            function(*args)
            self.room.note()

    def _enter(self, state: str) -> None:
        self.state = state
        self.event("on_call_state_updated", state)

    # What pipecat calls.

    def set_user_name(self, name: str) -> None:
        self.name = name

    def update_subscription_profiles(self, profiles: Any, completion: Any = None) -> None:
        self.later(completion, None)

    def update_subscriptions(
        self, participant_settings: Any = None, profile_settings: Any = None, completion: Any = None
    ) -> None:
        self.later(completion, None)

    def join(self, url: str, token: str | None, client_settings: Any, completion: Any) -> None:
        self.url, self.token = url, token
        if self.room.join_error:
            self.later(completion, None, self.room.join_error)
            return
        self._enter("joined")
        data = {"participants": {"local": {"id": "bot"}}, "meetingSession": {"id": "meeting"}}
        self.later(completion, data, None)
        for person in self.room.people.values():
            self.event("on_participant_joined", person)

    def leave(self, completion: Any) -> None:
        self._enter("left")
        self.later(completion, None)

    def release(self) -> None:
        self.released = True
        self.state = "left"
        self._jobs.put(None)
        self._thread.join(5)

    def participants(self) -> dict[str, Any]:
        return dict(self.room.people)

    def set_audio_renderer(
        self, participant_id: str, callback: Any, audio_source: str, sample_rate: int, **_: Any
    ) -> None:
        assert (audio_source, sample_rate) == ("microphone", 16_000)
        self.renderers[participant_id] = callback
        self.room.note()

    def send_app_message(
        self, message: dict[str, Any], participant: str | None, completion: Any
    ) -> None:
        self.messages.append((message, participant))
        self.room.note()
        self.later(completion, None)

    def start_transcription(self, settings: Any, completion: Any) -> None:
        assert settings["extra"]["interim_results"]
        self.later(completion, None)
        self.event("on_transcription_started", {"transcriptId": "t"})

    def stop_transcription(self, completion: Any) -> None:
        self.later(completion, None)

    def update_transcription(self, participants: Any, instance_id: Any, completion: Any) -> None:
        self.transcribed = list(participants)
        self.room.note()
        self.later(completion, None)

    # What a test makes happen.

    def speak(self, participant_id: str, audio: bytes) -> None:
        """20 ms of a participant's sound, if anybody wants it."""
        if renderer := self.renderers.get(participant_id):
            data = SimpleNamespace(audio_frames=audio, sample_rate=16_000, num_channels=1)
            self.later(renderer, participant_id, data, "microphone")

    def transcript(self, participant_id: str, text: str, *, final: bool = True) -> None:
        alternatives = [{"languages": ["en"]}]
        message = {
            "participantId": participant_id,
            "text": text,
            "timestamp": "2026-01-01T00:00:00Z",
            "trackType": "cam-audio",
            "rawResponse": {"is_final": final, "channel": {"alternatives": alternatives}},
        }
        self.event("on_transcription_message", message)

    def eject(self) -> None:
        self._enter("left")

    def of(self, kind: str) -> list[dict[str, Any]]:
        """What the bot has sent of one kind."""
        return [message for message, _ in self.messages if message["type"] == kind]
