"""Spark-TTS (github.com/SparkAudio/Spark-TTS, cli/SparkTTS.py).

No marks; text in brackets is read aloud. Where a voice is made up rather than cloned, its gender,
pitch and speed are labels before the text, each of which the request must have: these parameters
replace the service's own. A token's name in the text would be that token.
"""

from duologue.particles.render import Notation

SPARK_TTS = Notation(
    engine="spark-tts",
    parameters={
        "female": [{"gender": "female"}],
        "male": [{"gender": "male"}],
        "high": [{"pitch": "high"}, {"pitch": "high"}, {"pitch": "very_high"}],
        "deep": [{"pitch": "low"}, {"pitch": "low"}, {"pitch": "very_low"}],
        "fast": [{"speed": "high"}, {"speed": "high"}, {"speed": "very_high"}],
        "slow": [{"speed": "low"}, {"speed": "low"}, {"speed": "very_low"}],
    },
    reserved=[(r"<(?=\|)", "< ")],
)
