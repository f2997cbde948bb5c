"""Sizes and vocabulary of the talker.

Its sequence is `TEXT`, the bytes of a clause, `SPEECH`, the clause's speech tokens, `END`.
"""

import re
import textwrap
import unicodedata
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from duologue.text.numerals import spell_digits

TEXT, SPEECH, END = 256, 257, 258
"""Ids that follow the 256 bytes."""

FIRST_CODE = 260
CODES = 6561

Sound = Literal["laugh", "sigh"]
SOUNDS: tuple[Sound, ...] = get_args(Sound)
"""Sounds that are no words: each is a stretch of codes, said where a text has its name in []."""

_SOUND = re.compile(rf"\[({'|'.join(SOUNDS)})\]")
TEMPERATURE = 0.5
"""At which codes are drawn: chosen on held-out sentences."""

_UNKNOWN = re.compile(r"[^A-Za-z' .,?!;:-]+")
_LETTER = re.compile("[A-Za-z]")
_ACRONYM = re.compile(r"[A-Z]{2,}")


class TalkerConfig(BaseModel):
    """A decoder shaped like Llama: RMSNorm, rotary positions, SwiGLU, a head tied to the input."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    vocab_size: Annotated[int, Field(ge=FIRST_CODE, le=100_000)] = FIRST_CODE + CODES
    hidden_size: Annotated[int, Field(gt=0, le=8192)] = 288
    intermediate_size: Annotated[int, Field(gt=0, le=32_768)] = 704
    layers: Annotated[int, Field(gt=0, le=128)] = 8
    heads: Annotated[int, Field(gt=0, le=128)] = 6
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    max_positions: Annotated[int, Field(gt=0, le=100_000)] = 1024

    @model_validator(mode="after")
    def _heads_divide(self) -> "TalkerConfig":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} is not {self.heads} heads of an even size"
            )
        return self

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.heads


def text_ids(text: str) -> list[int]:
    """The prompt of a clause, up to and with `SPEECH`: what the talker continues with its speech.

    Numbers are words, letters are small but in acronyms, and what is no letter or common mark is a
    space.
    """
    return _prompt(_letters(text))


def prompts(text: str, most: int) -> list[list[int] | str]:
    """The prompts of a text of any length, as `text_ids`, and the names of its sounds, in order.

    It is cut between words, within a word only where that alone is longer. A text of which nothing
    can be said has none.

    Args:
        text: One clause, or a longer one that no mark parts.
        most: Ids of a prompt.
    """
    found: list[list[int] | str] = []
    # Every second part is a name.
    for place, part in enumerate(_SOUND.split(text)):
        if place % 2:
            found.append(part)
        elif _LETTER.search(letters := _letters(part)):
            wrapped = textwrap.wrap(letters, most - 2, break_on_hyphens=False)
            found += map(_prompt, wrapped)
    return found


def is_sayable(text: str) -> bool:
    """Whether anything of a text can be said: an English letter, a digit or a sound."""
    return bool(_SOUND.search(text) or _LETTER.search(_letters(text)))


def _letters(text: str) -> str:
    # Letters without their accents.
    parts = unicodedata.normalize("NFKD", spell_digits(text).replace("’", "'"))  # noqa: RUF001
    known = _UNKNOWN.sub(" ", "".join(part for part in parts if not unicodedata.combining(part)))
    return " ".join(word if _ACRONYM.match(word) else word.lower() for word in known.split())


def _prompt(letters: str) -> list[int]:
    return [TEXT, *letters.encode(), SPEECH]
