"""The embedded voice as a bot, a server and the command line use it."""

import asyncio
import json

import numpy as np
import pytest
import soundfile
from pipecat.frames.frames import LLMFullResponseEndFrame, LLMFullResponseStartFrame
from pipecat.tests.utils import run_test

from bots.cli import CONFIGS
from bots.models import _load_speech, check_speech
from duologue.config import BotConfig, load_config
from duologue.embedded.package import find_package
from duologue.embedded.speak import speak
from duologue.errors import ConfigError, InputError, UsageError
from duologue.lm.conversation import Reference, System, User
from duologue.lm.demux import Demux
from duologue.lm.engine import Request
from duologue.lm.events import AudioTokens, EndReason, TurnEnd
from duologue.lm.formats import find_family
from duologue.lm.modes import Mode
from duologue.lm.prompt import TextPart
from duologue.lm.templates import render
from duologue.lm.vocabulary import Vocabulary
from duologue.memory import Memory
from duologue.talker.config import CODES, END, FIRST_CODE, SPEECH, TEXT, text_ids
from duologue.talker.engine import TalkerEngine
from duologue.token2wav.config import EMBEDDED
from processors.frames import AnswerTextFrame, SpeechTokensFrame
from services.talker import Talker
from services.token2wav import Token2wav, VoiceAudioFrame
from tests.embedded.tiny import DECODER, SOUNDS

# Its fixture exports seven graphs.
pytestmark = pytest.mark.timeout(400)

FAMILY = find_family("duologue-talker")
VOCABULARY = Vocabulary(FAMILY)
TEXT_TO_SAY = "Hello there. It is three o'clock."


# The family


def test_codes_are_speech_and_end_is_the_end():
    demux = Demux(VOCABULARY, turn_id=1)
    events = demux.push([FIRST_CODE, FIRST_CODE + CODES - 1, END])
    assert demux.ended
    spoken = [token for event in events if isinstance(event, AudioTokens) for token in event.tokens]
    assert spoken == [0, CODES - 1]
    [end] = [event for event in events if isinstance(event, TurnEnd)]
    assert end.reason is EndReason.STOP and not end.dropped


@pytest.mark.parametrize("inert", [TEXT, SPEECH, 259, FIRST_CODE + CODES])
def test_no_other_id_is_speech(inert):
    demux = Demux(VOCABULARY, turn_id=1)
    events = [*demux.push([inert, END]), *demux.finish(EndReason.STOP)]
    assert not any(isinstance(event, AudioTokens) for event in events)


def test_its_decoder_is_the_embedded_one():
    rate_hz = EMBEDDED.token_rate_hz
    FAMILY.check_decoder(EMBEDDED.codebook, EMBEDDED.flow.vocab_size, rate_hz)
    with pytest.raises(ConfigError, match="duologue-25"):
        FAMILY.check_decoder("s3-v2", CODES, rate_hz)


def test_its_prompt_is_the_text_alone():
    assert render(VOCABULARY, [User("Hello there.")], Mode.T1_A1) == (TextPart("Hello there."),)
    for extra in (System("Shout."), Reference(((1,),), "x")):
        with pytest.raises(UsageError, match="duologue-talker takes no"):
            render(VOCABULARY, [extra, User("Hi")], Mode.T1_A1)
    assert text_ids("Hi") == [TEXT, *b"hi", SPEECH]
    assert text_ids("Zoë's café") == [TEXT, *b"zoe's cafe", SPEECH]


# A bot


def bot(folder, **sections) -> BotConfig:
    usual = {"talker": {"engine": "embedded"}, "token2wav": {"engine": "embedded"}}
    config = BotConfig.model_validate(usual | sections)
    decoder = config.token2wav.model_copy(update={"model": folder})  # type: ignore[union-attr]
    return config.model_copy(update={"token2wav": decoder})


async def test_an_answer_is_spoken_by_a_bots_own_parts(packed):
    config = bot(packed)
    speech = _load_speech(config, check_speech(config))
    assert speech and speech.batcher and speech.voice and isinstance(speech.talker, TalkerEngine)
    request = Request(max_tokens=30, temperature=4.0, seed=1)
    talker = Talker(speech.talker, speech.vocabulary, request, Memory([]))
    frames = [
        LLMFullResponseStartFrame(),
        AnswerTextFrame("Hello there. "),
        AnswerTextFrame("How are you?"),
        LLMFullResponseEndFrame(),
    ]
    tokens = []
    down, _ = await run_test(talker, frames_to_send=frames)
    tokens = [frame for frame in down if isinstance(frame, SpeechTokensFrame)]
    count = sum(len(frame.tokens) for frame in tokens)
    assert 2 * 5 <= count <= 2 * 30
    assert isinstance(down[-1], LLMFullResponseEndFrame)
    start = LLMFullResponseStartFrame()
    decoder = Token2wav(speech.batcher, speech.voice)
    sound, _ = await run_test(decoder, frames_to_send=[start, *tokens, LLMFullResponseEndFrame()])
    audio = b"".join(frame.audio for frame in sound if isinstance(frame, VoiceAudioFrame))
    assert len(audio) == 2 * DECODER.samples_per_token * count
    await speech.talker.close()
    await asyncio.to_thread(speech.batcher.close)


def test_the_named_set_up_is_the_embedded_voice():
    config = load_config(CONFIGS / "embedded-voice.yaml", environ={})
    assert config.talker and config.talker.engine == "embedded"
    assert config.token2wav and config.token2wav.engine == "embedded"


SERVER = {"family": "cosyvoice2-merged", "base_url": "http://h/v1", "model": "m"}
OWN = {"engine": "embedded"}
DECODED = {"model": "models/x", "voice": "ada"}
WRONG = {
    "a server without an address": ({"family": "cosyvoice2"}, DECODED, "needs base_url, model too"),
    "an embedded one on a server": (OWN | SERVER, OWN, "needs no base_url, family, model"),
    "a decoder without a voice": (SERVER, {"model": "x"}, "engine cudagraph needs voice too"),
    "a chosen voice": (OWN, OWN | {"voice": "ada"}, "has one voice"),
    "another decoder": (OWN, DECODED, "go together"),
    "another talker": (SERVER, OWN, "go together"),
    "no decoder": (OWN, None, "set token2wav"),
}


@pytest.mark.parametrize(("talker", "token2wav", "message"), WRONG.values(), ids=list(WRONG))
def test_what_does_not_go_together_is_refused(tmp_path, talker, token2wav, message):
    path = tmp_path / "bot.yaml"
    path.write_text(json.dumps({"talker": talker, "token2wav": token2wav}))
    with pytest.raises(ConfigError, match=message):
        load_config(path, environ={})


# The command


def test_speak_says_a_text_the_same_for_the_same_seed(run, packed, tmp_path):
    def said(name: str, seed: int) -> tuple[dict, np.ndarray]:
        path = tmp_path / name
        code, out, _ = run(
            "speak", TEXT_TO_SAY, "-o", path, "--voice", packed, "--seed", seed, "--json"
        )
        assert code == 0
        samples, rate_hz = soundfile.read(path)
        facts = json.loads(out)
        assert rate_hz == facts["rate_hz"] == 24_000
        assert len(samples) == DECODER.samples_per_token * facts["audio_tokens"]
        return facts, samples

    facts, samples = said("a.wav", 3)
    assert facts["audio_s"] == pytest.approx(len(samples) / 24_000, abs=0.001)
    assert set(facts["rtf"]) == {"talker", "flow", "hift"}
    assert all(rtf > 0 for rtf in facts["rtf"].values())
    np.testing.assert_array_equal(said("b.wav", 3)[1], samples)
    assert not np.array_equal(said("c.wav", 4)[1], samples)


async def test_a_laugh_in_a_text_is_heard(package):
    alone = await speak(package, "<laugh>[sighs]")
    assert alone.audio_tokens == sum(map(len, SOUNDS.values())) and not alone.cut
    with pytest.raises(InputError, match="nothing to say"):
        await speak(package, "[cough] [laugh"[:7])


async def test_speech_that_does_not_end_is_counted(package):
    spoken = await speak(package, TEXT_TO_SAY, temperature=0)
    # The likeliest token of random weights is never the end.
    assert spoken.facts()["cut_clauses"] == 2
    with pytest.raises(InputError, match="nothing to say"):
        await speak(package, "...")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--lang", "zh"), 2, "speaks English"),
        (("--seed", "-1"), 3, "seed: found -1"),
    ],
)
def test_speak_refuses_what_the_voice_cannot(run, packed, tmp_path, options, code, message):
    found, _, err = run("speak", "Hi.", "-o", tmp_path / "a.wav", "--voice", packed, *options)
    assert (found, message in err, err.count("\n")) == (code, True, 1)
    assert not (tmp_path / "a.wav").exists()


def test_piper_has_no_seed(run, tmp_path):
    code, _, err = run("speak", "Hi.", "-o", tmp_path / "a.wav", "--seed", "1")
    assert code == 2 and "a Piper voice has none" in err


def test_a_voice_is_found_by_its_folder(packed):
    assert find_package("piper-en_US-joe-medium") is None
    assert find_package(str(packed)).folder == packed  # type: ignore[union-attr]
