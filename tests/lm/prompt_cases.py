"""A conversation for each family, and its prompt as ids of a tiny tokenizer.

`python -m tests.lm.prompt_cases` writes golden/prompts.json anew.
"""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from duologue.lm.conversation import (
    Answer,
    CallResult,
    Item,
    Reference,
    Style,
    System,
    User,
)
from duologue.lm.engine import ToolCall
from duologue.lm.formats import FAMILIES
from duologue.lm.modes import Mode
from duologue.lm.prompt import AudioPart, IdsPart, Part, TextPart
from duologue.lm.templates import prompt_ids, render
from duologue.lm.tokenizer import Vocab
from duologue.lm.vocabulary import Vocabulary
from tests.lm.streams import byte_level, names_of, numeric

GOLDEN = Path(__file__).parent / "golden" / "prompts.json"

QWEN = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
FRAMING = {
    "step-audio2": ["<audio_end>"],
    "glm-4-voice": ["[gMASK]", "<sop>", "<|begin_of_audio|>", "<|end_of_audio|>"],
    "cosyvoice2-merged": ["<|endofprompt|>"],
    "cosyvoice3-merged": ["<|endofprompt|>"],
    "spark-tts": [
        *("<|task_tts|>", "<|task_controllable_tts|>", "<|start_content|>", "<|end_content|>"),
        *("<|start_style_label|>", "<|gender_0|>", "<|pitch_label_4|>", "<|speed_label_2|>"),
    ],
}


@cache
def vocabulary_of(family: str) -> Vocabulary:
    """A family's vocabulary with a tiny tokenizer that has all names of its prompts."""
    profile = FAMILIES[family]
    names = [*names_of(profile), *FRAMING.get(family.removesuffix("-base"), [])]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        byte_level(dict.fromkeys(names)).save(str(path))
        return Vocabulary(profile, Vocab(path))


def tool(name: str) -> dict[str, Any]:
    function = {"name": name, "description": "函数", "parameters": {"type": "object"}}
    return {"type": "function", "function": function}


def sound(seconds: float, rate_hz: int = 16_000) -> AudioPart:
    return AudioPart(np.zeros(round(seconds * rate_hz), np.float32), rate_hz)


TASK = System("Be kind.")
CALLS = (ToolCall("a", "clock", '{"zone": "时"}'), ToolCall("b", "laugh", "{}"))
RESULTS = (CallResult("b", "ha"), CallResult("a", "12:00"))
FRAME = ((0, 1023), (0, 1, 4095))
GLOBALS = tuple(range(32))

Case = tuple[str, tuple[Item, ...], Mode, dict[str, Any]]

CASES: dict[str, Case] = {
    "step-audio2 text": ("step-audio2", (TASK, User("time")), Mode.T1_T2, {}),
    "step-audio2 speech, tools": (
        "step-audio2",
        (
            TASK,
            User("the clock"),
            Answer("时间 it is", ((0, 6560, 7, 8, 9),), CALLS),
            *RESULTS,
            Answer("laugh", ((5,),)),
            User("time"),
        ),
        Mode.T1_T2A2,
        {"tools": [tool("clock"), tool("laugh")]},
    ),
    "step-audio2-think, thought": (
        "step-audio2-think",
        (TASK, User("time")),
        Mode.T1_T2A2,
        {"thought": "sigh\n"},
    ),
    "step-audio2-base": (
        "step-audio2-base",
        (System("say\n"), User("time")),
        Mode.T1_A1,
        {},
    ),
    "step-audio1": (
        "step-audio1",
        (TASK, User(audio=FRAME), Answer("laugh"), User(audio=FRAME)),
        Mode.A1_T2,
        {},
    ),
    "step-audio-tts": (
        "step-audio-tts",
        (System("say"), Reference(FRAME, "time"), User("(RAP)laugh")),
        Mode.T1_A1,
        {},
    ),
    "glm-4-voice": (
        "glm-4-voice",
        (
            TASK,
            User(audio=((0, 16_383),)),
            Answer("it is time", (tuple(range(30)),)),
            User("laugh"),
        ),
        Mode.T1_T2A2,
        {},
    ),
    "cosyvoice2-merged clip": (
        "cosyvoice2-merged",
        (Reference(((0, 6560),), "laugh "), User("time")),
        Mode.T1_A1,
        {},
    ),
    "cosyvoice3-merged": ("cosyvoice3-merged", (TASK, User("time [breath]")), Mode.T1_A1, {}),
    "spark-tts clip": (
        "spark-tts",
        (Reference((GLOBALS, (0, 8191)), "laugh "), User("time")),
        Mode.T1_A1,
        {},
    ),
    "spark-tts style": (
        "spark-tts",
        (Style("female", pitch="very_high"), User("time")),
        Mode.T1_A1,
        {},
    ),
    "qwen3-omni": (
        "qwen3-omni",
        (TASK, User("the clock"), Answer("it is", calls=CALLS), *RESULTS, User("time")),
        Mode.T1_T2,
        {"tools": [tool("clock")]},
    ),
}


def parts_of(case: Case) -> tuple[Part, ...]:
    family, items, mode, options = case
    return render(vocabulary_of(family), items, mode, **options)


def spelled_out(vocabulary: Vocabulary, parts: tuple[Part, ...]) -> str:
    """A prompt for reading: ids by their names, half a character as hex, sound as its seconds."""
    assert vocabulary.vocab
    out = ""
    for part in parts:
        if isinstance(part, TextPart):
            out += part.text
        elif isinstance(part, IdsPart):
            pieces, framing = vocabulary.vocab.pieces, vocabulary.vocab.framing
            named = (framing[t].encode() if t in framing else pieces[t] for t in part.ids)
            out += b"".join(named).decode(errors="backslashreplace")
        else:
            out += f"{{{len(part.samples) / part.rate_hz:g} s}}"
    return out


def plain(family, *items, mode, **options) -> str:
    """The prompt of a family without its tokenizer, which must be text alone."""
    parts = render(numeric(family), items, mode, **options)
    assert all(isinstance(part, TextPart) for part in parts)
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def write_golden() -> None:
    lines = [
        f"{json.dumps(name)}: {json.dumps(prompt_ids(vocabulary_of(case[0]), parts_of(case)))}"
        for name, case in CASES.items()
    ]
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_golden()
