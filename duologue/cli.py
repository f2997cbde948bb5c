"""The `duologue` command.

Exit codes: 2 a wrong call, 3 unusable input, 4 a model or engine that is missing or failed.
"""

import asyncio
import importlib
import importlib.util
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from duologue.cli_engine import engine_app
from duologue.cli_lm import lm_app
from duologue.cli_models import models_app
from duologue.cli_serve import serve
from duologue.cli_train import train_app
from duologue.cli_voices import voices_app
from duologue.errors import DuologueError, EngineError, InputError, UsageError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(models_app, name="models")
app.add_typer(voices_app, name="voices")
app.add_typer(engine_app, name="engine")
app.add_typer(lm_app, name="lm")
app.add_typer(train_app, name="train")
app.command()(serve)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The WAV to write.")]
Config = Annotated[str, typer.Option("--config", "-c", help="A set-up's name, or a YAML file.")]
Flags = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a value.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")]


def main() -> None:
    """Run the command; an expected error is one line on standard error, never a traceback."""
    try:
        app()
    except DuologueError as error:
        print(f"duologue: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"duologue {version('duologue')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """A real-time, duplex voice chatbot."""


def _bots() -> Any:
    """The bots' commands, which live in a checkout and not in the wheel."""
    checkout = Path(__file__).parent.parent
    if not (checkout / "bots" / "cli.py").is_file():
        raise UsageError(
            "this command needs the bots, which are not part of the installed package; "
            "run it from a checkout of duologue that is installed with `make install`"
        )
    # From a checkout any working directory will do.
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    if importlib.util.find_spec("pipecat") is None:
        raise UsageError("this command needs pipecat; run `make install`")
    return importlib.import_module("bots.cli")


def _model(ref: str) -> Path:
    """Where a model is, fetched with a progress bar if it is not there."""
    from duologue.models import ensure, stderr_progress

    with stderr_progress() as progress:
        return ensure(ref, progress=progress)


@app.command()
def room(
    config: Config = "embedded",
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    flags: Flags = [],  # noqa: B006
    verbose: Verbose = False,
) -> None:
    """Start the browser room."""
    named = [("room.host", host), ("room.port", port)]
    overrides = [*flags, *(f"{key}={value}" for key, value in named if value is not None)]
    _bots().room(config, overrides, verbose)


@app.command()
def phone(
    config: Config = "embedded",
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    public_url: Annotated[
        str | None, typer.Option(help="Where the provider reaches this server.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Take calls from anyone; on loopback only.")
    ] = False,
    flags: Flags = [],  # noqa: B006
    verbose: Verbose = False,
) -> None:
    """Take phone calls: Twilio Media Streams, or another provider's."""
    named = [("phone.host", host), ("phone.port", port), ("phone.public_url", public_url)]
    overrides = [*flags, *(f"{key}={value}" for key, value in named if value is not None)]
    overrides += ["phone.auth=false"] if no_auth else []
    _bots().phone(config, overrides, verbose)


@app.command()
def daily(
    config: Config = "embedded",
    url: Annotated[str | None, typer.Option(help="The room, https://DOMAIN.daily.co/ROOM.")] = None,
    flags: Flags = [],  # noqa: B006
    verbose: Verbose = False,
) -> None:
    """Join a Daily room; DUOLOGUE_DAILY_TOKEN holds its token."""
    _bots().daily(config, [*flags, *([f"daily.url={url}"] if url else [])], verbose)


@app.command()
def talk(
    source: Annotated[Path, typer.Argument(metavar="IN.wav")],
    output: Output,
    config: Config = "embedded",
    flags: Flags = [],  # noqa: B006
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Answer one recording with another."""
    result = _bots().talk(source, output, config, flags, verbose)
    if as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        typer.echo(f"you: {result['transcript']}\nbot: {result['reply']}\n{output}")


@app.command()
def speak(
    text: str,
    output: Output,
    voice: Annotated[
        str, typer.Option(help="A Piper voice's name or folder; or `embedded`, or such a folder.")
    ] = "piper-en_US-joe-medium",
    lang: Annotated[str, typer.Option(help="Language of the text: en or zh.")] = "en",
    seed: Annotated[int | None, typer.Option(help="Of the embedded voice's randomness.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say a text."""
    from duologue.audio.pcm import check_target, write_wav
    from duologue.embedded.package import find_package

    if lang not in ("en", "zh"):
        raise UsageError(f"--lang {lang}: expected en or zh")
    check_target(output)
    if package := find_package(voice):
        if lang != "en":
            raise UsageError(f"--lang {lang}: the embedded voice speaks English; take another one")
        from duologue.embedded.speak import speak as say

        spoken = asyncio.run(say(package, text, seed=seed or 0))
        samples, rate_hz, facts = spoken.samples, spoken.rate_hz, spoken.facts()
    else:
        if seed is not None:
            raise UsageError("--seed: a Piper voice has none; leave it out")
        samples, rate_hz, facts = _say_with_piper(voice, text, lang)
    write_wav(output, samples, rate_hz)
    said = f"{output}: {facts['audio_s']:.1f} s"
    typer.echo(json.dumps(facts, indent=2) if as_json else said)


def _say_with_piper(voice: str, text: str, lang: str) -> tuple[Any, int, dict[str, Any]]:
    """Samples, their rate, and facts about them."""
    from duologue.tts.offline import speak as say
    from duologue.tts.piper import PiperVoice

    engine = PiperVoice(_model(voice))
    try:
        started = time.perf_counter()
        samples = say(engine, text, lang=lang)
        spent_s = time.perf_counter() - started
    finally:
        engine.close()
    if not len(samples):
        raise InputError(f"{text!r}: found nothing to say, expected some words")
    audio_s = len(samples) / engine.rate_hz
    facts = {"audio_s": round(audio_s, 3), "rate_hz": engine.rate_hz, "rtf": spent_s / audio_s}
    return samples, engine.rate_hz, facts


@app.command()
def transcribe(
    source: Annotated[Path, typer.Argument(metavar="IN.wav")],
    model: Annotated[str, typer.Option(help="A Whisper model's name or folder.")] = (
        "whisper-tiny.en"
    ),
    lang: Annotated[str, typer.Option(help="Language, for multilingual models.")] = "en",
    as_json: AsJson = False,
) -> None:
    """Write down what a recording says."""
    from duologue.asr.whisper import Whisper, pieces
    from duologue.audio.pcm import ASR_RATE_HZ, read_audio

    samples = read_audio(source)
    whisper = Whisper(_model(model), language=lang, threads=2)
    texts, started = [], time.perf_counter()
    hidden = as_json or not sys.stderr.isatty()  # elsewhere a bar is an empty line
    with typer.progressbar(list(pieces(samples)), file=sys.stderr, hidden=hidden) as parts:
        for part in parts:
            transcript = whisper.transcribe(part)
            if transcript.credible:
                texts.append(transcript.text)
    text = " ".join(texts)
    if not text:
        typer.echo(f"{source}: no speech found", err=True)
    if as_json:
        facts = {
            "text": text,
            "audio_s": round(len(samples) / ASR_RATE_HZ, 3),
            "seconds": round(time.perf_counter() - started, 3),
        }
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        typer.echo(text)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="CHECKPOINT", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)],
) -> None:
    """Write a token2wav checkpoint (flow.yaml, flow.pt, hift.pt) as safetensors."""
    from duologue.token2wav.layout import check_checkpoint

    check_checkpoint(source)
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target}: found a file, expected a folder")
    if importlib.util.find_spec("torch") is None:
        raise EngineError("converting needs torch; run: pip install -e '.[torch]'")
    from duologue.token2wav.weights import convert as write

    write(source, target)
    typer.echo(str(target))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what can run here, and what to do."""
    from duologue.doctor import examine

    checks = examine()
    if as_json:
        typer.echo(json.dumps([check.to_dict() for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks) + 2
        for check in checks:
            mark = "ok  " if check.ok else ("-   " if check.optional else "MISS")
            advice = "" if check.ok else f"  -> {check.advice}"
            typer.echo(f"{mark} {check.name:<{width}}{check.found}{advice}")
    if not all(check.ok or check.optional for check in checks):
        raise typer.Exit(4)
