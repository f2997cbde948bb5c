"""The names of speech particles and the words that models write for them: data only.

One row per name, its surface forms separated by blanks; an underscore in a form stands for the
blank, hyphen or underscore that may join its words. `lexicon` looks them up.
"""

from enum import StrEnum


class Kind(StrEnum):
    """What a particle does to the voice.

    Of several forms in one mark the first kind of this list counts; of two requests that a speech
    engine cannot take together, the last.
    """

    EVENT = "event"
    """A sound that is no word: a laugh, a cough."""
    INTERJECTION = "interjection"
    """A sound that has a spelling: uhm, oh."""
    STAGE = "stage"
    """A movement that makes no sound."""
    PROSODY = "prosody"
    """A pause, a stress, a pronunciation."""
    EMOTION = "emotion"
    """The mood of what follows."""
    STYLE = "style"
    """The manner of what follows."""
    LANGUAGE = "language"
    """The language or dialect of what follows."""


GOVERNING = frozenset((Kind.EMOTION, Kind.STYLE, Kind.LANGUAGE))
"""The kinds that hold for what follows, until another of the same kind."""

SOUNDS = frozenset((Kind.EVENT, Kind.INTERJECTION))
"""The kinds that are heard by themselves."""


class Span(StrEnum):
    """What of the text a mark is about."""

    POINT = "point"
    """The place where it stands."""
    PREFIX = "prefix"
    """What follows."""
    RANGE = "range"
    """`<x>`: what stands before its `</x>`; without one it is a point or a prefix by its kind."""


TAXONOMY: dict[Kind, dict[str, str]] = {
    Kind.EVENT: {
        "laugh": "laugh laughs laughing laughed laughter lol burst_of_laughter bursts_out_laughing"
        " laugh_speak 笑 大笑 笑声 发笑 哈哈大笑 捧腹大笑 欢笑 狂笑",
        "chuckle": "chuckle chuckles chuckling chuckled snicker snickers snickering smirks_audibly"
        " 轻笑 低笑 暗笑 窃笑 浅笑 苦笑 冷笑",
        "giggle": "giggle giggles giggling giggled titter titters tittering"
        " 咯咯笑 嘻嘻笑 偷笑 傻笑",
        "sigh": "sigh sighs sighing sighed 叹气 叹息 叹 叹了口气 叹了一口气 长叹",
        "breath": "breath breaths breathe breathes breathing 呼吸 喘气 换气",
        "breath_in": "inhale inhales inhaling breath_in breathes_in breathing_in 吸气 深呼吸",
        "breath_out": "exhale exhales exhaling breath_out breathes_out breathing_out 呼气 吐气",
        "quick_breath": "quick_breath pant pants panting heavy_breathing 喘息 急促呼吸 喘",
        "cough": "cough coughs coughing coughed 咳 咳嗽 咳咳 咳嗽声",
        "clear_throat": "clear_throat clears_throat clearing_throat throat_clearing"
        " clears_his_throat clears_her_throat clears_my_throat clears_their_throat ahem"
        " 清嗓 清嗓子 清了清嗓子",
        "sniffle": "sniffle sniffles sniffling sniff sniffs sniffing 抽鼻子 吸鼻子",
        "sneeze": "sneeze sneezes sneezing achoo 打喷嚏 喷嚏",
        "sob": "sob sobs sobbing sobbed 抽泣 啜泣 呜咽 哽咽",
        "cry": "cry cries crying cried weep weeps weeping wail wails wailing"
        " 哭 哭泣 大哭 哭声 流泪",
        "scream": "scream screams screaming shriek shrieks shrieking 尖叫 惊叫",
        "gasp": "gasp gasps gasping gasped 倒吸一口气 倒吸一口凉气 倒吸气",
        "yawn": "yawn yawns yawning yawned 打哈欠 哈欠 打呵欠",
        "groan": "groan groans groaning moan moans moaning grunt grunts grunting growl growls"
        " growling whimper whimpers whimpering 呻吟 低吼",
        "snore": "snore snores snoring 打鼾 打呼噜",
        "swallow": "swallows gulp gulps gulping 吞咽 咽口水",
        "burp": "burp burps burping hiccup hiccups hiccuping 打嗝",
        "lipsmack": "lipsmack lip_smack lip_smacks lip_smacking smacks_lips 咂嘴",
        "click": "tongue_click tongue_clicks clucking tsk tuts tutting click clicks 咂舌 啧啧",
        "hiss": "hiss hisses hissing 嘶",
        "hum": "hum hums humming hummed hum_tune 哼唱 哼歌 哼曲",
        "whistle": "whistle whistles whistling 吹口哨 口哨",
        "noise": "noise vocalized_noise background_noise 噪音",
        "applause": "applause claps clapping 鼓掌 掌声",
    },
    Kind.INTERJECTION: {
        "uhm": "uhm um uh umm er erm mn 嗯 呃",
        "oh": "oh surprise_oh suprise_oh surprise_yo suprise_yo 哦 噢",
        "ah": "ah aah surprise_ah suprise_ah 啊",
        "wa": "wa wow surprise_wa suprise_wa 哇",
        "confirm": "confirmation_en 嗯嗯",
        "question": "question_ei question_en question_ah question_oh question_yi 诶 欸",
        "dissatisfied": "dissatisfaction_hnn hnn hmph 哼 哎",
        "haha": "haha hahaha hehe 哈哈 呵呵 嘿嘿 嘻嘻",
    },
    Kind.STAGE: {
        "smile": "smile smiles smiling grin grins grinning beams smirk smirks smirking 微笑 笑嘻嘻",
        "nod": "nod nods nodding 点头 点点头",
        "shake_head": "shakes_head shaking_head shakes_his_head shakes_her_head 摇头 摇摇头",
        "wave": "waves waving waves_hand waves_hello 挥手 招手",
        "wink": "wink winks winking 眨眼 眨眨眼",
        "shrug": "shrug shrugs shrugging 耸肩",
        "frown": "frown frowns frowning 皱眉",
        "blush": "blush blushes blushing 脸红",
        "bow": "bows bowing 鞠躬",
        "hug": "hugs hugging 拥抱",
        "think": "thinks thinking ponders pondering 思考 沉思 思考中",
    },
    Kind.PROSODY: {
        "pause": "pause pauses pausing long_pause uv_break lbreak beat silence break"
        " 停顿 沉默 暂停",
        "emphasis": "strong emphasis",
        "accent": "accent",
    },
    Kind.EMOTION: {
        "happy": "happy happily joyful joyfully cheerful cheerfully 高兴 开心 快乐 愉快",
        "sad": "sad sadly sorrowful 悲伤 难过 伤心",
        "angry": "angry angrily furious 生气 愤怒",
        "fear": "fear fearful afraid scared 害怕 恐惧",
        "surprise": "surprised surprise 惊讶 吃惊",
        "disgust": "disgusted disgust 厌恶",
        "calm": "calm calmly 平静 冷静",
        "excited": "excited excitedly 激动 兴奋",
        "coy": "coy coyly act_coy 撒娇",
        "empathy": "empathetic sympathetic empathy comfort comforting 同情 安慰",
        "shy": "shy shyly 害羞",
        "serious": "serious seriously 严肃",
        "gentle": "gentle gently tender tenderly soulful 温柔",
        "melancholic": "melancholic depressed 忧郁 沮丧",
        "confused": "confused confusion puzzled 困惑 疑惑",
        "embarrassed": "embarrass embarrassed sheepishly 尴尬",
        "nervous": "nervous nervously anxious anxiously worried worriedly 紧张 担心",
        "playful": "playful playfully teasing teasingly mischievously humour humor 调皮 俏皮 幽默",
        "sarcastic": "sarcastic sarcastically dryly 讽刺",
        "proud": "proud proudly arrogant arrogantly 骄傲 傲慢",
        "admiring": "admiration admiring admiringly 钦佩",
        "cold": "coldness coldly indifferent 冷漠",
        "warm": "warm warmly sweet sweetly 温暖 甜美",
        "tired": "tired tiredly sleepy sleepily wearily 疲惫",
        "curious": "curious curiously 好奇",
        "neutral": "neutral neutrally 平淡 中性",
    },
    Kind.STYLE: {
        "whisper": "whisper whispers whispering whispered 耳语 低语 悄悄话",
        "murmur": "murmur murmurs murmuring mutter mutters muttering 嘟囔 喃喃自语",
        "shout": "shout shouts shouting yell yells yelling roar roars roaring 大喊 喊叫 大叫",
        "soft": "soft softly quietly 轻声 小声",
        "loud": "loud loudly 大声",
        "fast": "fast faster quickly 快速 快 语速快 快一点 加快语速",
        "slow": "slow slower slowly 慢速 慢 语速慢 慢一点 放慢语速",
        "deep": "deep_voice low_voice deeply 低沉",
        "high": "high_voice high_pitched 尖声",
        "singing": "sing sings singing 唱歌 歌唱 唱",
        "rap": "rap raps rapping 说唱",
        "child": "child childlike girl pure 童声",
        "older": "older elderly 老人",
        "male": "male male_voice 男声",
        "female": "female female_voice sister 女声",
        "news": "news radio program advertising 新闻 播音",
        "story": "story storytelling recite recites reciting 讲故事 朗诵",
        "chat": "chat chatty casual 闲聊",
        "vivid": "vivid exaggerated generous 夸张 生动",
        "ethereal": "ethereal 空灵",
        "authority": "authority commanding 威严",
    },
    Kind.LANGUAGE: {
        "zh": "chinese mandarin 中文 普通话",
        "en": "english 英文 英语",
        "ja": "japanese 日语",
        "ko": "korean 韩语",
        "yue": "cantonese 粤语 广东话",
        "sichuan": "sichuanese 四川话",
        "dongbei": "东北话",
        "gansu": "甘肃话",
        "guizhou": "贵州话",
        "henan": "河南话",
        "hubei": "湖北话",
        "hunan": "湖南话",
        "jiangxi": "江西话",
        "minnan": "hokkien 闽南话 闽南语",
        "ningxia": "宁夏话",
        "shanxi": "山西话",
        "shaanxi": "陕西话",
        "shandong": "山东话",
        "shanghai": "shanghainese 上海话",
        "tianjin": "天津话",
        "yunnan": "云南话",
    },
}

ELEMENTS: dict[str, str] = {
    "spell": "spell say-as",
    "pronounce": "phoneme sub",
    "markup": "speak prosody voice emotion speed volume pitch audio expr se",
}
"""Elements of SSML and of what speech engines made of it: of kind prosody, known in `<>` only.

Markup says nothing by itself; its attributes do: `<prosody rate="slow">` is `slow`.
"""

COMMON = (
    "noise click clicks accent strong emphasis break beat silence child girl pure older sister"
    " male female news radio program advertising story chat casual generous vivid authority"
    " comfort confusion humour humor admiration sweet warm"
)
"""Words too ordinary to be a mark in round brackets or between asterisks."""

AUDIBLE = "whispers murmurs mutters shouts yells roars sings raps 耳语 低语 悄悄话 嘟囔"
"""Manners that are sounds at the same time: marks also where no clause begins."""

DEGREES: dict[int, str] = {
    1: "softly quietly gently lightly slightly bit little soft quiet gentle light slight small"
    " short faintly 轻轻地 轻轻 轻 微微 微 小声 小声地 有点 稍微 短",
    3: "loudly deeply heavily very extremely really so loud deep heavy big long 大声 大声地 深深地"
    " 深深 深 长长地 长 很 非常 特别 大",
}
"""Words beside a form that say how much of it: 1 a little, 3 a lot."""

MODIFIERS = (
    "a an the and then with while in to herself himself under his her breath some for"
    " nervously warmly happily sadly awkwardly slowly quickly briefly dramatically playfully"
    " mischievously wearily excitedly nervous warm awkward sad happy evil dry takes take lets_out"
    " gives again out 无奈地 无奈 开心地 温柔地 温柔 忍不住 缓缓 地 一声 一下 两声 声 了 着 起来"
    " 一口气 口气 一"
)
"""Other words that may stand beside a form: "(laughs nervously)", "（无奈地叹气）"."""

UNITS: dict[str, float] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "秒", "秒钟"), 1000.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds", "毫秒"), 1.0),
}
"""Milliseconds in the units of a pause."""

MAX_PAUSE_MS = 10_000
"""A model that asks for more does not get it: the voice would seem dead."""

CONTROL = (r"<\|[^\s<>|◁]{1,40}\|>", r"</?(?:audio|tts|tool)_[a-z0-9_]{1,32}>")
"""Patterns of tokens' names, which reach a text only where a server or a model left them in."""
