"""deploy/triton's model, driven as Triton's Python backend drives it, with a scripted backend."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deploy.triton.local import MODELS, command, find_server
from duologue.errors import ConfigError, EngineError
from duologue.serving.remote import RemoteBatcher
from duologue.token2wav.stream import Schedule
from tests.deploy.ray_cluster import Model, speech

FOLDER = MODELS / "token2wav"
START, END, FINAL = 1, 2, 1
MAX_TOKENS = 50


class Tensor:
    """Takes its array by DLPack, as the backend does."""

    def __init__(self, name: str, array: np.ndarray):
        self.name, self.array = name, array

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> "Tensor":
        holder: Any = SimpleNamespace(
            __dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (1, 0)
        )
        return cls(name, np.from_dlpack(holder).copy())


class Sender:
    """What a request's responses go to."""

    def __init__(self):
        self.cancelled = False
        self._sent: Queue = Queue()

    def send(self, response: Any = None, flags: int = 0) -> None:
        self._sent.put((response, flags))

    def is_cancelled(self) -> bool:
        return self.cancelled

    def next(self) -> dict[str, np.ndarray]:
        """The outputs of one more response; raises an error that was sent."""
        response, _ = self._sent.get(timeout=30)
        if response.error:
            raise RuntimeError(response.error)
        return {tensor.name: tensor.array for tensor in response.tensors}

    def rest(self) -> list[dict[str, np.ndarray]]:
        """All outputs up to the final flag."""
        sent = []
        while True:
            response, flags = self._sent.get(timeout=30)
            if response is not None:
                if response.error:
                    assert flags == FINAL
                    raise RuntimeError(response.error)
                sent.append({tensor.name: tensor.array for tensor in response.tensors})
            if flags == FINAL:
                assert self._sent.empty()
                return sent


BACKEND = ModuleType("triton_python_backend_utils")
vars(BACKEND).update(
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START=START,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END=END,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
    Tensor=Tensor,
    TritonError=str,
    InferenceResponse=lambda tensors, error="": SimpleNamespace(tensors=tensors, error=error),
    get_input_tensor_by_name=lambda request, name: request.inputs.get(name),
)


class Loaded:
    """The model, and a client of it."""

    def __init__(self, module: ModuleType):
        self.model = module.TritonPythonModel()
        self.model.initialize({})

    def ask(
        self, sequence: int, flags: int = 0, tokens: Any = (), voice: str = "", **own
    ) -> Sender:
        inputs = {"TOKENS": np.array(tokens, np.int32)}
        inputs |= {name: np.array(value) for name, value in own.items()}
        sender = Sender()
        request = SimpleNamespace(
            inputs=inputs,
            flags=lambda: flags,
            correlation_id=lambda: sequence,
            parameters=lambda: json.dumps({"voice": voice} if voice else {}),
            get_response_sender=lambda: sender,
        )
        self.model.execute([request])
        return sender


def in_process(model: Model, seed: int, tokens: np.ndarray) -> np.ndarray:
    said: Queue = Queue()
    with model.batcher() as here:
        utterance = here.open(model.voice, seed, said.put, Schedule((4, 6)))
        utterance.push(tokens)
        utterance.finish()
        parts = [said.get(timeout=30)]
        while not parts[-1].final:
            parts.append(said.get(timeout=30))
    return np.concatenate([part.samples for part in parts])


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory) -> Model:
    return Model.write(tmp_path_factory.mktemp("triton"), places=1)


@pytest.fixture(scope="module")
def patched(on_disk) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, BACKEND.__name__, BACKEND)
        patch.setenv("DUOLOGUE_VOICES", str(on_disk.folder / "voices"))
        patch.setenv("DUOLOGUE_TRITON_SETUP", str(on_disk.folder / "set-up.yaml"))
        patch.setenv("DUOLOGUE_SERVE__MAX_TOKENS", str(MAX_TOKENS))
        patch.setenv("DUOLOGUE_SERVE__IDLE_S", "1")
        yield patch


@pytest.fixture(scope="module")
def module(patched) -> ModuleType:
    path = FOLDER / "1/model.py"
    spec = importlib.util.spec_from_file_location("triton_model", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    patched.setitem(sys.modules, "triton_model", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loaded(module) -> Iterator[Loaded]:
    loaded = Loaded(module)
    yield loaded
    loaded.model.finalize()


def test_an_utterance_in_three_requests(loaded, on_disk):
    tokens = speech(1, 40)
    own = {"SEED": np.array([2**64 - 1], np.uint64), "SCHEDULE": np.array([4, 6], np.int32)}
    sound = loaded.ask(1, START, tokens[:10], "ada", **own)
    assert loaded.ask(1, 0, tokens[10:]).rest() == []
    assert loaded.ask(1, END).rest() == []
    placed, first, *others = sound.rest()
    assert [(name, len(array)) for name, array in placed.items()] == [("PCM", 0)]
    assert (first["RATE_HZ"].tolist(), first["SEED_USED"].tolist()) == ([24_000], [2**64 - 1])
    assert first["VOICE_DIGEST"].tobytes().hex() == on_disk.voice.digest
    assert all(list(other) == ["PCM"] for other in others)
    pcm = np.concatenate([part["PCM"] for part in (first, *others)])
    assert pcm.dtype == np.int16
    np.testing.assert_allclose(pcm / 32768, in_process(on_disk, 2**64 - 1, tokens), atol=1e-3)


def test_a_request_may_be_a_whole_utterance_and_its_voice_a_hash(loaded, on_disk):
    parts = loaded.ask(2, START | END, speech(2, 5), on_disk.voice.digest).rest()
    assert sum(len(part["PCM"]) for part in parts) == 5 * 960


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"voice": "bob"}, "NOT_FOUND: unknown voice 'bob'"),
        ({"voice": "ab" * 32}, "NOT_FOUND: no voice has the hash abababababab; known: ada"),
        ({"tokens": [1, 6561]}, "INVALID_ARGUMENT: .*6561"),
        ({"tokens": [1] * (MAX_TOKENS + 1)}, "INVALID_ARGUMENT: found more than 50 tokens"),
        ({"tokens": []}, "INVALID_ARGUMENT: nothing to say"),
        ({"SCHEDULE": np.array([0], np.int32)}, "INVALID_ARGUMENT: schedule: found .0."),
    ],
)
def test_what_cannot_be_said_is_refused(loaded, own, message):
    sound = loaded.ask(3, START | END, **{"tokens": [1, 2], **own})
    with pytest.raises(RuntimeError, match=message):
        sound.rest()


async def test_tokens_beyond_the_limit_are_not_kept(module):
    call = module.Call(Sender(), room=3)
    for last in (False, False, True):
        call.add(np.arange(2), last=last)
    assert [tokens.tolist() async for tokens in call.tokens(1)] == [[0, 1], [0]]


def test_tokens_of_an_utterance_that_is_over_are_refused(loaded):
    loaded.ask(4, START | END, [1]).rest()
    with pytest.raises(RuntimeError, match="INVALID_ARGUMENT: this utterance is over"):
        loaded.ask(4, 0, [1]).rest()


def test_the_end_of_what_is_over_is_no_error(loaded):
    assert loaded.ask(5, END).rest() == []


def test_a_full_model_refuses_and_a_client_that_has_gone_leaves_its_place(loaded):
    sound = loaded.ask(6, START, [1])
    sound.next()
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED: all 1 places are taken"):
        loaded.ask(7, START, [1]).rest()
    sound.cancelled = True
    assert sound.rest() == []
    loaded.ask(8, START | END, [1]).rest()


def test_a_client_that_says_nothing_more_is_ended(loaded):
    sound = loaded.ask(9, START, [1])
    with pytest.raises(RuntimeError, match="DEADLINE_EXCEEDED: the client has sent nothing for 1"):
        sound.rest()


def test_a_sequence_that_begins_anew_ends_the_one_before(loaded):
    before = loaded.ask(10, START, [1])
    before.next()
    anew = loaded.ask(10, START | END, [1])
    assert before.rest() == []
    # Refused if it came before the other one's place was free.
    with suppress(RuntimeError):
        anew.rest()
    loaded.ask(10, START | END, [1]).rest()


def test_a_sequence_that_begins_anew_at_once_ends_the_one_before(loaded):
    senders: list[Sender] = []
    # Together, before the first one has had its turn.
    loaded.model._loop.call_soon_threadsafe(
        lambda: senders.extend(loaded.ask(11, START | END, [1]) for _ in range(2))
    )
    assert loaded.ask(12, END).rest() == []
    assert senders[0].rest() == []
    assert senders[1].rest()


def test_the_set_up_has_to_name_token2wav(module, patched, tmp_path, monkeypatch):
    monkeypatch.delenv("DUOLOGUE_TRITON_SETUP")
    with pytest.raises(ConfigError, match="DUOLOGUE_TRITON_SETUP is not set"):
        module.TritonPythonModel().initialize({})
    (tmp_path / "set-up.yaml").write_text("lang: en\n")
    monkeypatch.setenv("DUOLOGUE_TRITON_SETUP", str(tmp_path / "set-up.yaml"))
    with pytest.raises(ConfigError, match="no section token2wav"):
        module.TritonPythonModel().initialize({})


def test_triton_knows_every_word_of_the_configuration():
    pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="needs tritonclient")
    from google.protobuf import text_format

    config = text_format.Parse((FOLDER / "config.pbtxt").read_text(), pb2.ModelConfig())
    assert config.name == FOLDER.name
    assert config.model_transaction_policy.decoupled
    assert [one.name for one in config.input if not one.optional] == ["TOKENS"]


def test_a_missing_server_says_how_to_get_one(tmp_path):
    with pytest.raises(EngineError, match="make triton"):
        find_server(tmp_path)


def test_only_this_machine_reaches_a_server_that_was_not_told_otherwise():
    assert [
        part for part in command(Path("server"), "--x=1") if "address" in part or "x=" in part
    ] == [
        "--grpc-address=127.0.0.1",
        "--http-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        "--x=1",
    ]


def test_a_client_without_the_package_is_told_its_name(monkeypatch):
    for name in list(sys.modules):
        if name.startswith("tritonclient") or name == "duologue.serving.remote_triton":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tritonclient", None)
    with pytest.raises(EngineError, match=r"needs tritonclient.*'.\[triton\]'"):
        RemoteBatcher(["triton://127.0.0.1:1"])
