"""`duologue lm`: what speech-text models can do, and their streams taken apart."""

import json
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from duologue.errors import InputError, UsageError
from duologue.lm.demux import Demux
from duologue.lm.engine import MalformedCall, ToolCall
from duologue.lm.events import (
    AudioTokens,
    Dropped,
    EndReason,
    Event,
    Particle,
    TextDelta,
    Thought,
    ToolCallMalformed,
    ToolCallReady,
    ToolCallStarted,
    ToolCallUndecoded,
    TurnEnd,
)
from duologue.lm.formats import FAMILIES, find_family
from duologue.lm.modes import Mode
from duologue.lm.stream_lines import read_lines
from duologue.lm.tokenizer import Vocab
from duologue.lm.vocabulary import Vocabulary

lm_app = typer.Typer(no_args_is_help=True, help="Speech-text models: modes and streams.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModeName = Annotated[str | None, typer.Option("--mode", help="As A1-T2A2; refused if impossible.")]


@lm_app.command()
def modes(
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    mode: ModeName = None,
    as_json: AsJson = False,
) -> None:
    """Show which family can do what; A audio, T text, 1 the user's content, 2 the answer."""
    profiles = [find_family(family)] if family is not None else list(FAMILIES.values())
    if mode is not None:
        wanted = _mode(mode)
        if family is not None:
            profiles[0].check_mode(wanted)
        profiles = [profile for profile in profiles if wanted in profile.modes]
    if as_json:
        rows = [
            {
                "family": profile.family,
                "modes": list(profile.modes),
                "codebooks": [
                    {"name": book.name, "size": book.size, "rate_hz": book.rate_hz}
                    for book in profile.codebooks
                ],
                "interleave": profile.interleave,
                "tools": profile.tools is not None,
                "speech_prefix": profile.speech_prefix,
            }
            for profile in profiles
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    form = "{:<21}" + "{:<9}" * len(Mode) + "{}"
    typer.echo(form.format("FAMILY", *Mode, "CODEBOOKS"))
    for profile in profiles:
        marks = ["yes" if mode in profile.modes else "-" for mode in Mode]
        books = ", ".join(f"{book.name} ({book.size})" for book in profile.codebooks)
        typer.echo(form.format(profile.family, *marks, books or "-"))


@lm_app.command()
def demux(
    family: Annotated[str, typer.Option(help="As in `duologue lm modes`.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the model's tokenizer.json; decodes text.")
    ] = None,
    assume_prefix: Annotated[
        str | None,
        typer.Option(help="Token that ends the prompt, as tts_start or think; --mode knows it."),
    ] = None,
    mode: ModeName = None,
    turn_id: Annotated[int, typer.Option(help="Stamped on each event.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Take a stream apart: ids (one a line) or server-sent chunks on standard input.

    Of a chunk its ids are read, or else its text, speech and tool calls.
    """
    profile = find_family(family)
    if mode is not None:
        wanted = _mode(mode)
        profile.check_mode(wanted)
        if wanted.audio_out:
            assume_prefix = assume_prefix or profile.speech_prefix
    vocabulary = Vocabulary(profile, Vocab(tokenizer) if tokenizer else None)
    machine = Demux(vocabulary, turn_id=turn_id, prefix=assume_prefix)
    reason = EndReason.CUT
    try:
        for piece in read_lines(sys.stdin):
            if isinstance(piece, EndReason):
                reason = piece
            elif isinstance(piece, str):
                _print(machine.push_text(piece), as_json)
            elif isinstance(piece, ToolCall | MalformedCall):
                _print(machine.push_call(piece), as_json)
            else:
                _print(machine.push(piece), as_json)
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is no UTF-8 text: {error}") from error
    _print(machine.finish(reason), as_json)


def _mode(name: str) -> Mode:
    try:
        return Mode(name.upper())
    except ValueError:
        raise UsageError(f"mode {name!r} is not known: use one of {', '.join(Mode)}") from None


def _print(events: Iterable[Event], as_json: bool) -> None:
    for event in events:
        shown = to_dict(event)
        if as_json:
            typer.echo(json.dumps(shown, ensure_ascii=False))
        else:
            kind, place = shown.pop("type"), [shown.pop(field.name) for field in fields(Event)]
            facts = json.dumps(shown, ensure_ascii=False)
            typer.echo(f"{place[1]:>5} text {place[2]:<5} audio {place[3]:<6} {kind:<10}{facts}")


_TYPES = {
    TextDelta: {"type": "text"},
    AudioTokens: {"type": "audio"},
    Particle: {"type": "particle"},
    Thought: {"type": "thought"},
    ToolCallStarted: {"type": "tool_call", "status": "started"},
    ToolCallReady: {"type": "tool_call", "status": "ready"},
    ToolCallUndecoded: {"type": "tool_call", "status": "undecoded"},
    ToolCallMalformed: {"type": "error", "code": "tool_call_malformed", "status": "malformed"},
    Dropped: {"type": "error"},
    TurnEnd: {"type": "end"},
}


def to_dict(event: Event) -> dict[str, Any]:
    """An event as plain data: its type, its place, and of text and tokens what it has."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, Particle):
        mark = values.pop("mark")
        values |= {"name": mark.name, "kind": mark.kind, "text": mark.source}
    elif isinstance(event, Dropped):
        values["code"] = values.pop("reason")
    elif "text" in values:
        del values["text" if event.tokens else "tokens"]  # type: ignore[attr-defined]
    elif isinstance(event, ToolCallMalformed):
        values["text"] = values.pop("source")
        del values["text" if event.tokens else "tokens"]
    return _TYPES[type(event)] | values
