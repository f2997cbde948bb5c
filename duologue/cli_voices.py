"""`duologue voices`: add, list and delete voices."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from duologue.voices import VoiceStore

voices_app = typer.Typer(no_args_is_help=True, help="Add, list and delete voices.")

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Folder = Annotated[
    Path | None,
    typer.Option("--store", help="The folder of voices.", show_default="DUOLOGUE_VOICES"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _store(folder: Path | None) -> "VoiceStore":
    from duologue.voices import VoiceStore

    return VoiceStore(folder) if folder else VoiceStore.default()


@voices_app.command()
def add(
    name: Name,
    clip: Annotated[Path, typer.Argument(metavar="CLIP.wav", show_default=False)],
    model: Annotated[str, typer.Option(help="A token2wav model's folder or name.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a voice.")] = False,
    store: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Learn a voice from 3 to 30 s of clean speech."""
    from duologue.audio.clip import read_clip
    from duologue.models import ensure, stderr_progress
    from duologue.token2wav.front_end import VoiceFrontEnd

    voices = _store(store)
    voices.check_name(name, replace=replace)
    speech = read_clip(clip)
    with stderr_progress() as progress:
        front_end = VoiceFrontEnd.load(ensure(model, progress=progress), threads=2)
    info = voices.add(name, speech, front_end, replace=replace)
    text = f"{info.name}: {info.seconds:.1f} s"
    typer.echo(info.model_dump_json(indent=2) if as_json else text)


@voices_app.command("list")
def list_voices(store: Folder = None, as_json: AsJson = False) -> None:
    """List the voices."""
    from duologue.voices import VoiceInfo

    voices = _store(store).list()
    if as_json:
        rows = [
            found.model_dump()
            if isinstance(found, VoiceInfo)
            else {"name": name, "problems": [str(found)]}
            for name, found in voices.items()
        ]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    form = "{:<24}{:>7}{:>9}  {:<14}{}"
    typer.echo(form.format("NAME", "LENGTH", "RATE", "DIGEST", "MADE WITH"))
    for name, found in voices.items():
        if isinstance(found, VoiceInfo):
            length, digest = f"{found.seconds:.1f} s", found.digest[:12]
            made_with = f"{found.model} ({found.model_digest[:12]})"
            typer.echo(form.format(name, length, found.source_rate_hz, digest, made_with))
        else:
            typer.echo(f"{name:<24}damaged: {found}")


@voices_app.command()
def delete(name: Name, store: Folder = None) -> None:
    """Delete a voice."""
    _store(store).delete(name)
