"""What a request must be before anything is written: the mode, the items, the tools."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from duologue.errors import UsageError
from duologue.lm.conversation import Answer, CallResult, Item, System, User, settled
from duologue.lm.formats import Profile
from duologue.lm.modes import Mode
from duologue.lm.prompt import AudioPart

T = TypeVar("T", bound=Item)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be written, as `render` takes it, with calls and results in pairs."""

    profile: Profile
    items: tuple[Item, ...]
    mode: Mode
    tools: tuple[dict[str, Any], ...]
    thought: str | None


def checked(
    profile: Profile,
    conversation: Iterable[Item],
    mode: Mode,
    tools: Sequence[dict[str, Any]],
    thought: str | None,
) -> Asked:
    """The request, if the family can do it and everything needed is said.

    Raises:
        UsageError: saying what is not, and what to do.
    """
    profile.check_mode(mode)
    asked = Asked(profile, settled(conversation), mode, tuple(tools), thought)
    _check_end(asked)
    _check_tools(asked)
    if asked.thought is not None and not asked.profile.thinks:
        raise UsageError(f"{asked.profile.family} does not think first: give no thought")
    for item in asked.items:
        if isinstance(item, User):
            _check_user(item, asked.profile)
        elif isinstance(item, Answer):
            _check_answer(item, asked.profile)
    return asked


def check_chat(asked: Asked) -> None:
    """Refuse items that no chat has, and a task that nobody has set.

    Raises:
        UsageError: saying what it is and what to do.
    """
    for item in asked.items:
        if not isinstance(item, System | User | Answer | CallResult):
            raise UsageError(f"{asked.profile.family} takes no {type(item).__name__}")
    says_again = asked.mode in (Mode.A1_T1, Mode.T1_A1)
    if says_again and not any(isinstance(item, System) for item in asked.items):
        raise UsageError(
            f"{asked.profile.family} in {asked.mode} needs a System that asks for it: without one "
            "it answers"
        )


def spoken_text(asked: Asked, *kinds: type[Item]) -> str:
    """The text that a request to speak is about.

    Args:
        asked: The request.
        kinds: What else it may hold, once each.

    Raises:
        UsageError: there is more than one text, or something else.
    """
    for item in asked.items:
        if not isinstance(item, (User, *kinds)):
            names = ", ".join(kind.__name__ for kind in kinds) or "nothing else"
            raise UsageError(
                f"{asked.profile.family} takes no {type(item).__name__}: expected one User with "
                f"the text to speak, and {names}"
            )
    text = one(asked, User)
    return text.text if text else ""


def one(asked: Asked, kind: type[T]) -> T | None:
    """The only item of its kind; None if there is none.

    Raises:
        UsageError: there are several.
    """
    found = [item for item in asked.items if isinstance(item, kind)]
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} items of {kind.__name__}: {asked.profile.family} takes one at a time"
        )
    return found[0] if found else None


def _check_end(asked: Asked) -> None:
    if not asked.items or not isinstance(asked.items[-1], User | CallResult):
        raise UsageError("nothing to answer: a conversation ends with a User or a CallResult")
    users = [item for item in asked.items if isinstance(item, User)]
    if not users:
        raise UsageError("nothing to answer: the conversation has no User")
    newest, mode = users[-1], asked.mode
    if mode.audio_in and newest.audio is None:
        raise UsageError(f"{mode} hears the user, but the newest User has no audio")
    if not mode.audio_in and (newest.audio is not None or not newest.text.strip()):
        has = "audio" if newest.audio is not None else "no text"
        raise UsageError(f"{mode} reads the user, but the newest User has {has}")


def _check_tools(asked: Asked) -> None:
    calls = any(isinstance(item, CallResult) for item in asked.items)
    if (asked.tools or calls) and asked.profile.tools is None:
        raise UsageError(
            f"nothing public tells how {asked.profile.family} calls tools: give it none"
        )


def _check_user(user: User, profile: Profile) -> None:
    if user.audio is None:
        return
    if profile.heard is None:
        raise UsageError(f"{profile.family} does not hear: give the user's words as text")
    if profile.heard.sound != isinstance(user.audio, AudioPart):
        takes = "sound (AudioPart)" if profile.heard.sound else "audio tokens"
        raise UsageError(f"{profile.family} hears {takes} only")
    if isinstance(user.audio, AudioPart) and not len(user.audio.samples):
        raise UsageError("the audio of a User is empty: leave the User out")


def _check_answer(answer: Answer, profile: Profile) -> None:
    speaks = profile.codebooks and any(mode.audio_out for mode in profile.modes)
    if answer.audio and not speaks:
        raise UsageError(f"{profile.family} gives text alone: its answers have no audio tokens")
    if not answer.audio and not profile.text_history:
        raise UsageError(
            f"nothing public tells how {profile.family} remembers an answer without its audio "
            "tokens: keep them, or leave the answer out"
        )
