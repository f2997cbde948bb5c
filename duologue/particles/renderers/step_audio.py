"""Step-Audio-TTS-3B and Step-Audio-EditX.

Step-Audio-TTS (github.com/stepfun-ai/Step-Audio, tts.py) takes one tag at the very beginning of a
text, in round brackets of either width, so that ordinary brackets there must not stay. Rap and
singing need the music checkpoint and a reference of that name. EditX
(github.com/stepfun-ai/Step-Audio-EditX, README) takes ten tags anywhere and two dialects at the
beginning; its moods and manners are editing passes over finished audio, which is no way to speak
in real time. Its README spells "Surprise" also "Suprise"; both are read, the first is written.
"""

from duologue.particles.render import Notation

STEP_AUDIO_TTS = Notation(
    engine="step-audio-tts",
    leads={
        name: [f"（{tag}）" for tag in tags.split()]
        for name, tags in {
            "happy": "高兴1 高兴2",
            "excited": "高兴2",
            "angry": "生气1 生气2",
            "sad": "悲伤1",
            "melancholic": "悲伤1",
            "coy": "撒娇1",
            "zh": "中文",
            "en": "英文",
            "ko": "韩语",
            "ja": "日语",
            "sichuan": "四川话",
            "yue": "粤语",
            "rap": "RAP",
            "singing": "哼唱",
            "slow": "慢速1 慢速2",
            "fast": "快速1 快速2",
        }.items()
    },
    parameters={"rap": [{"vocal": "RAP"}], "singing": [{"vocal": "哼唱"}]},
    reserved=[(r"^\s*[(（]([^()（）]*)[)）]\s*", r"\1，")],
)

STEP_AUDIO_EDITX = Notation(
    engine="step-audio-editx",
    points={
        "breath": "[Breathing]",
        "breath_in": "[Breathing]",
        "breath_out": "[Breathing]",
        "quick_breath": "[Breathing]",
        "laugh": "[Laughter]",
        "chuckle": "[Laughter]",
        "giggle": "[Laughter]",
        "haha": "[Laughter]",
        "sigh": "[Sigh]",
        "uhm": "[Uhm]",
        "oh": "[Surprise-oh]",
        "ah": "[Surprise-ah]",
        "wa": "[Surprise-wa]",
        "confirm": "[Confirmation-en]",
        "question": "[Question-ei]",
        "dissatisfied": "[Dissatisfaction-hnn]",
    },
    leads={"sichuan": ["[Sichuanese]"], "yue": ["[Cantonese]"]},
    reserved=[(r"\[", "("), (r"\]", ")")],
)
