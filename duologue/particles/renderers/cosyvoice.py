"""CosyVoice2 and CosyVoice3 (github.com/FunAudioLLM/CosyVoice, cosyvoice/tokenizer).

Both know the same marks as tokens. CosyVoice3 has its phonemes as tokens too, "[AH0]", "[ā]" or
just "[a]", so that no square bracket of the text may reach either. Dialects, moods and rates are
an instruction before the text; only such as the models were trained on are given
(cosyvoice/utils/common.py, webui examples), for others are sometimes read aloud. There is one
instruction a request.
"""

from dataclasses import replace

from duologue.particles.render import Notation

END_OF_PROMPT = "<|endofprompt|>"
SYSTEM = "You are a helpful assistant."
"""What CosyVoice3's prompt text begins with, followed by `END_OF_PROMPT`, in every request."""

DIALECTS = {
    "yue": "广东话",
    "dongbei": "东北话",
    "gansu": "甘肃话",
    "guizhou": "贵州话",
    "henan": "河南话",
    "hubei": "湖北话",
    "hunan": "湖南话",
    "jiangxi": "江西话",
    "minnan": "闽南话",
    "ningxia": "宁夏话",
    "shanxi": "山西话",
    "shaanxi": "陕西话",
    "shandong": "山东话",
    "shanghai": "上海话",
    "sichuan": "四川话",
    "tianjin": "天津话",
    "yunnan": "云南话",
}


def _instructions(texts: dict[str, str], system: str = "") -> dict[str, list]:
    return {
        name: [{"instruct_text": f"{system}{text}{END_OF_PROMPT}"}] for name, text in texts.items()
    }


COSYVOICE2 = Notation(
    engine="cosyvoice2",
    points={
        "breath": "[breath]",
        "breath_in": "[breath]",
        "breath_out": "[breath]",
        "quick_breath": "[quick_breath]",
        "gasp": "[quick_breath]",
        "laugh": "[laughter]",
        "chuckle": "[laughter]",
        "giggle": "[laughter]",
        "haha": "[laughter]",
        "sigh": "[sigh]",
        "cough": "[cough]",
        "clear_throat": "[cough]",
        "click": "[clucking]",
        "hiss": "[hissing]",
        "lipsmack": "[lipsmack]",
        "noise": "[noise]",
        "groan": "[vocalized-noise]",
        "uhm": "[mn]",
        "confirm": "[mn]",
        "hum": "[mn]",
        "accent": "[accent]",
    },
    ranges={
        "laugh": ("<laughter>", "</laughter>"),
        "chuckle": ("<laughter>", "</laughter>"),
        "giggle": ("<laughter>", "</laughter>"),
        "emphasis": ("<strong>", "</strong>"),
    },
    parameters=_instructions(
        {
            "yue": "用粤语说这句话",
            "sichuan": "用四川话说这句话",
            "shanghai": "用上海话说这句话",
            "tianjin": "用天津话说这句话",
            "happy": "用开心的语气说",
            "sad": "用伤心的语气说",
            "surprise": "用惊讶的语气说",
            "angry": "用生气的语气说",
            "fear": "用恐惧的情感表达",
            "disgust": "用恶心的情感表达",
            "fast": "快速",
            "slow": "慢速",
        }
    ),
    reserved=[
        (r"\[", "("),
        (r"\]", ")"),
        (r"<(?=\|)", "< "),
        (r"<(/?(?:strong|laughter))>", r"\1"),
    ],
)

COSYVOICE3 = replace(
    COSYVOICE2,
    engine="cosyvoice3",
    parameters=_instructions(
        {
            **{name: f"请用{dialect}表达。" for name, dialect in DIALECTS.items()},
            "happy": "请非常开心地说一句话。",
            "sad": "请非常伤心地说一句话。",
            "angry": "请非常生气地说一句话。",
            "fast": "请用尽可能快地语速说一句话。",
            "slow": "请用尽可能慢地语速说一句话。",
            "loud": "Please say a sentence as loudly as possible.",
            "soft": "Please say a sentence in a very soft voice.",
        },
        f"{SYSTEM} ",
    ),
)
