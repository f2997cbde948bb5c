"""What lies in a model's folder: file names of each layout, and whose voices it takes.

The public layout (stepfun-ai/Step-Audio-2-mini, folder token2wav) is flow.yaml, flow.pt, hift.pt
and the two models of the front end, which make voices. Ours is config.json and model.safetensors;
an export has config.json, outside.safetensors and a file for each graph. Nothing here needs torch.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from duologue.errors import InputError, ModelError
from duologue.token2wav.step import FrontEndId, VoicePrompt

CONFIG, TENSORS, OUTSIDE = "config.json", "model.safetensors", "outside.safetensors"
FLOW_YAML, FLOW, HIFT = "flow.yaml", "flow.pt", "hift.pt"
TOKENIZER, SPEAKER = "speech_tokenizer_v2_25hz.onnx", "campplus.onnx"

BLOCK, BLOCKS = 1 << 16, 16
"""How much of a file is hashed: so many blocks of so many bytes, spread over it."""


def check_checkpoint(folder: Path) -> None:
    """Whether the files of either layout of a checkpoint are there.

    Raises:
        ModelError: some are missing.
    """
    if (folder / CONFIG).is_file():
        needed = (TENSORS,)
    elif (folder / FLOW_YAML).is_file():
        needed = (FLOW, HIFT)
    else:
        raise ModelError(
            f"{folder} holds neither {CONFIG} nor {FLOW_YAML}; expected a token2wav checkpoint: "
            f"{CONFIG} and {TENSORS}, or {FLOW_YAML}, {FLOW} and {HIFT}"
        )
    check_files(folder, needed, "a token2wav checkpoint")


def check_files(folder: Path, names: Iterable[str], what: str) -> None:
    """Whether files are in a folder.

    Raises:
        ModelError: some are missing; it names them all.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder}: found no {' and no '.join(missing)}; expected {what}, all files of it"
        )


def find_front_end(folder: Path) -> FrontEndId | None:
    """The front end whose voices the decoder in a folder takes; None if the folder does not say.

    Its files are hashed in part, so this takes milliseconds; where they are not, a decoder that was
    converted or exported still says what lay beside its source.
    """
    if all((folder / name).is_file() for name in (TOKENIZER, SPEAKER)):
        return name_front_end(folder)
    for name in (TENSORS, OUTSIDE):
        try:
            with safe_open(folder / name, framework="numpy") as file:
                metadata = file.metadata() or {}
        except (OSError, SafetensorError):
            # Whoever needs the tensors says what is wrong with them.
            continue
        if "front_end" in metadata:
            return FrontEndId(metadata.get("front_end_name", ""), metadata["front_end"])
    return None


def name_front_end(folder: Path) -> FrontEndId:
    """The front end whose two files are in a folder."""
    digest = _digest([folder / TOKENIZER, folder / SPEAKER])
    return FrontEndId("/".join(folder.resolve().parts[-2:]), digest)


def front_end_metadata(front_end: FrontEndId | None) -> dict[str, str] | None:
    """What a file of tensors says of its front end, for `find_front_end` to find."""
    if front_end is None:
        return None
    return {"front_end": front_end.digest, "front_end_name": front_end.name}


def check_front_end(voice: VoicePrompt, takes: FrontEndId | None) -> None:
    """Whether a voice was made by the front end that a decoder takes, as far as both are known.

    Raises:
        InputError: it was made by another one.
    """
    made_by = voice.front_end
    if made_by is None or takes is None or made_by.digest == takes.digest:
        return
    raise InputError(
        f"voice: it was made with {made_by}, this decoder takes voices made with {takes}; make it "
        "again: duologue voices add NAME CLIP.wav --replace --model FOLDER"
    )


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for index in range(BLOCKS):
                file.seek(max(0, size - BLOCK) * index // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()
