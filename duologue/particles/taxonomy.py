"""The names of speech particles, the words that models write for them, and their look-up.

The tables are data: one row per name, its surface forms separated by blanks; an underscore in a
form stands for the blank, hyphen or underscore that may join its words.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from duologue.errors import UsageError


class Kind(StrEnum):
    """What a particle does to the voice."""

    EVENT = "event"
    """A sound that is no word: a laugh, a cough."""
    INTERJECTION = "interjection"
    """A sound that has a spelling: uhm, oh."""
    STAGE = "stage"
    """A movement that makes no sound."""
    PROSODY = "prosody"
    """A pause or a stress."""
    EMOTION = "emotion"
    """The mood of what follows."""
    STYLE = "style"
    """The manner of what follows."""
    LANGUAGE = "language"
    """The language or dialect of what follows."""


TAXONOMY: dict[Kind, dict[str, str]] = {
    Kind.EVENT: {
        "laugh": "laugh laughs laughing laughed laughter lol burst_of_laughter bursts_out_laughing"
        " 笑 大笑 笑声 发笑 哈哈大笑 捧腹大笑 欢笑 狂笑",
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
        "oh": "oh surprise_oh suprise_oh 哦 噢",
        "ah": "ah aah surprise_ah suprise_ah 啊",
        "wa": "wa wow surprise_wa suprise_wa 哇",
        "confirm": "confirmation_en 嗯嗯",
        "question": "question_ei question_en question_ah question_oh question_yi 诶 欸",
        "dissatisfied": "dissatisfaction_hnn hnn hmph 哼 哎",
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
        "coy": "coy coyly 撒娇",
        "empathy": "empathetic sympathetic 同情",
        "shy": "shy shyly 害羞",
        "serious": "serious seriously 严肃",
        "gentle": "gently tender tenderly 温柔",
        "melancholic": "melancholic 忧郁",
    },
    Kind.STYLE: {
        "whisper": "whisper whispers whispering whispered 耳语 低语 悄悄话",
        "shout": "shout shouts shouting yell yells yelling 大喊 喊叫 大叫",
        "soft": "soft softly quietly 轻声 小声",
        "loud": "loud loudly 大声",
        "fast": "fast quickly 快速 快 语速快",
        "slow": "slow slowly 慢速 慢 语速慢",
        "singing": "sing sings singing 唱歌 歌唱 唱",
        "rap": "rap raps rapping 说唱",
        "child": "child childlike 童声",
        "older": "older elderly 老人",
        "news": "news 新闻",
        "story": "story storytelling 讲故事",
    },
    Kind.LANGUAGE: {
        "zh": "chinese mandarin 中文 普通话",
        "en": "english 英文 英语",
        "ja": "japanese 日语",
        "ko": "korean 韩语",
        "yue": "cantonese 粤语 广东话",
        "sichuan": "sichuanese 四川话",
    },
}

COMMON = "noise click clicks accent strong emphasis break beat silence child older news story"
"""Words too ordinary to be a mark in round brackets or between asterisks."""

MODIFIERS = (
    "a an the and then with while in to herself himself under his her breath bit little some"
    " softly quietly gently loudly lightly deeply heavily nervously slightly warmly happily sadly"
    " awkwardly slowly quickly briefly dramatically playfully mischievously wearily excitedly"
    " soft quiet gentle loud light deep heavy nervous slight warm awkward big small long short"
    " sad happy evil dry takes take lets_out gives again out"
    " 轻轻地 轻轻 轻 微微 微 大声 大声地 小声 小声地 无奈地 无奈 深深地 深深 深 开心地 温柔地 温柔"
    " 忍不住 缓缓 长长地 长 地 一声 一下 两声 声 了 着 起来 一口气 口气 一"
)
"""Words that may stand beside a form inside one mark: "(laughs softly)", "（轻轻地叹气）"."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A form that was looked up.

    Attributes:
        name: the taxonomy's name, the same for every language and spelling.
        kind: what it does to the voice.
        form: the surface form, normalised.
        common: whether the form is an ordinary word that needs a stronger mark.
    """

    name: str
    kind: Kind
    form: str
    common: bool = False


_JOIN = re.compile(r"[\s_,，、-]+")
_TAIL = re.compile(r"[\s.!~…。！～]+$")
_LEVEL = re.compile(r"(?<=[^\W\d_])\d$")
_RANK = {kind: rank for rank, kind in enumerate(Kind)}


class Lexicon:
    """Looks up the content of a mark, whole or still growing.

    A content is a run of known forms and modifiers with at least one form. Because a prefix of a
    content is judged by the same walk, `viable` is true for each prefix of all that `match` takes.

    Args:
        forms: entries by normalised form.
        modifiers: normalised words that may stand beside a form.
    """

    def __init__(self, forms: Mapping[str, Entry], modifiers: frozenset[str]):
        self._forms = dict(forms)
        self._modifiers = modifiers
        pieces = modifiers.union(self._forms)
        self._longest = max(map(len, pieces))
        self._starts = {piece[:n] for piece in pieces for n in range(len(piece) + 1)}

    def extended(self, aliases: Mapping[str, str]) -> "Lexicon":
        """Returns a lexicon that also knows a family's own spellings, form to taxonomy name.

        Raises:
            UsageError: a name that the taxonomy does not have.
        """
        by_name = {entry.name: entry for entry in self._forms.values()}
        if unknown := set(aliases.values()) - set(by_name):
            raise UsageError(f"no particle is called {sorted(unknown)}: use {sorted(by_name)}")
        more = {
            _plain(form): replace(by_name[name], form=_plain(form), common=False)
            for form, name in aliases.items()
        }
        return Lexicon(self._forms | more, self._modifiers)

    @property
    def forms(self) -> Mapping[str, Entry]:
        """All surface forms."""
        return self._forms

    def match(self, content: str) -> Entry | None:
        """Returns the entry for a whole content: of several forms, one of the best kind."""
        text = _plain(content)
        if text in self._forms:
            return self._forms[text]
        found = [entry for at, entry in self._walk(text) if entry and at >= len(text)]
        return min(found, key=lambda entry: _RANK[entry.kind], default=None)

    def viable(self, content: str) -> bool:
        """Says whether more characters could still make `content` match."""
        text = _plain(content)
        if content[-1:].isspace():
            text = f"{text.rstrip()} ".lstrip()
        return any(text[at:] in self._starts for at, _ in self._walk(text))

    def _walk(self, text: str) -> Iterator[tuple[int, Entry | None]]:
        """Yields each place that a run of pieces reaches, with the best entry on the way."""
        reached: list[tuple[int, Entry | None]] = [(0, None)]
        for at, best in reached:
            yield at, best
            for end in range(at + 1, min(len(text), at + self._longest) + 1):
                for entry in self._piece(text, at, end):
                    step = end + text.startswith(" ", end), _better(best, entry)
                    if step not in reached:
                        reached.append(step)

    def _piece(self, text: str, at: int, end: int) -> Iterator[Entry | None]:
        """Yields what text[at:end] may be: an entry, or None for a modifier."""
        piece = text[at:end]
        if piece.isascii() and text[end : end + 1].isascii() and text[end : end + 1].isalnum():
            return
        if piece in self._forms:
            yield self._forms[piece]
        if piece in self._modifiers:
            yield None


def _plain(content: str) -> str:
    return _LEVEL.sub("", _JOIN.sub(" ", _TAIL.sub("", content).lstrip().casefold()))


def _better(old: Entry | None, new: Entry | None) -> Entry | None:
    if old is None or new is None:
        return old or new
    return new if _RANK[new.kind] < _RANK[old.kind] else old


def _forms() -> dict[str, Entry]:
    common = frozenset(COMMON.split())
    return {
        _plain(form): Entry(name, kind, _plain(form), form in common)
        for kind, names in TAXONOMY.items()
        for name, forms in names.items()
        for form in forms.split()
    }


LEXICON = Lexicon(_forms(), frozenset(map(_plain, MODIFIERS.split())))
"""The forms of the house; `extended` adds a family's own."""
