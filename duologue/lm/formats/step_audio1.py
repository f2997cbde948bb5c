"""Step-Audio 1 chat, Step-Audio-TTS-3B and Step-Audio-EditX (github.com/stepfun-ai/Step-Audio).

Two codebooks in frames of two linguistic and three semantic tokens. The models sometimes begin
with stray ones (stepfun-ai/Step-Audio-EditX#66), so frames are found by their codebooks.
"""

from dataclasses import replace

from duologue.lm.formats.profile import Codebook, Heard, Kind, Profile, Special
from duologue.lm.modes import Mode

STEP_AUDIO1 = Profile(
    family="step-audio1",
    # The public weights of the chat model answer in text (stepfun-ai/Step-Audio#114).
    modes=(Mode.A1_T1, Mode.A1_T2, Mode.T1_T2),
    text_ids=65_536,
    codebooks=(
        Codebook("vq02", 1024, 50 / 3, "<audio_{}>", 65_536),
        Codebook("vq06", 4096, 25, "<audio_{}>", 66_560, first_number=1024),
    ),
    specials=(
        Special("<|EOT|>", Kind.END, (3,), required=True),
        Special("<|BOT|>", Kind.END, (4,), required=True),
        Special("<s>", Kind.FRAMING, (1,)),
        Special("</s>", Kind.END, (2,)),
    ),
    frame=(0, 0, 1, 1, 1),
    speech_from_start=True,
    heard=Heard(sound=False),
)
STEP_AUDIO_TTS = replace(STEP_AUDIO1, family="step-audio-tts", modes=(Mode.T1_A1,), heard=None)
STEP_AUDIO_EDITX = replace(STEP_AUDIO_TTS, family="step-audio-editx")
