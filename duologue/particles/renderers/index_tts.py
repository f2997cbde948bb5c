"""IndexTTS-2 and IndexTTS-2.5 (github.com/index-tts/index-tts, indextts/infer_v2.py).

No marks: a mood is a vector of eight weights, mixed with the speaker's own mood by what they leave
of 1, and scaled by `emo_alpha`. The weights are the ones that upstream's own page gives for one
mood at full strength: a bias each, cut at 0.8 in sum.
"""

from dataclasses import replace

from duologue.particles.render import Notation, Parameters

BIAS = {
    "happy": 0.9375,
    "angry": 0.875,
    "sad": 1.0,
    "afraid": 1.0,
    "disgusted": 0.9375,
    "melancholic": 0.9375,
    "surprised": 0.6875,
    "calm": 0.5625,
}
"""In the order of the vector."""
MOST = 0.8
ALPHAS = (0.6, 0.8, 1.0)

MOODS = {
    "happy": "happy",
    "excited": "happy",
    "playful": "happy",
    "proud": "happy",
    "angry": "angry",
    "sad": "sad",
    "empathy": "sad",
    "fear": "afraid",
    "nervous": "afraid",
    "disgust": "disgusted",
    "melancholic": "melancholic",
    "tired": "melancholic",
    "surprise": "surprised",
    "calm": "calm",
    "gentle": "calm",
    "warm": "calm",
    "serious": "calm",
}
"""The nearest of the eight."""


def emotion(mood: str, alpha: float) -> Parameters:
    """A request's parameters for one of the eight moods.

    Args:
        mood: a key of `BIAS`.
        alpha: how much of it, 0..1.
    """
    weight = min(BIAS[mood], MOST)
    vector = tuple(weight if name == mood else 0.0 for name in BIAS)
    return {"emo_vector": vector, "emo_alpha": alpha}


INDEX_TTS2 = Notation(
    engine="index-tts2",
    parameters={name: [emotion(mood, alpha) for alpha in ALPHAS] for name, mood in MOODS.items()},
)

INDEX_TTS25 = replace(
    INDEX_TTS2,
    engine="index-tts2.5",
    parameters={
        **INDEX_TTS2.parameters,
        "fast": [{"duration_factor": factor} for factor in (0.85, 0.75, 0.65)],
        "slow": [{"duration_factor": factor} for factor in (1.15, 1.3, 1.5)],
    },
)
