"""A page to hear and see the embedded voice: held-out sentences by teacher, codes and text.

Run `python -m benchmarks.listening_page [-o FILE] [--count N] [--package FOLDER] [--held FILE]`.
"""

import argparse
import base64
import html
import io
from pathlib import Path
from string import Template

import numpy as np
import soundfile
from matplotlib import image

from benchmarks.embedded_voice import HELD, Row, codec, read_held, teacher, whole
from duologue.audio.mel import flow_mel
from duologue.audio.pcm import resample
from duologue.embedded import FOLDER
from duologue.embedded.package import Package

RATE_HZ = 24_000

PAGE = Template("""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>duologue: the embedded voice</title>
<style>
body { font: 16px/1.4 system-ui; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
table { border-spacing: .6rem } th { text-align: left } img, audio { display: block; width: 21rem }
img { height: 6rem; image-rendering: pixelated }
</style>
<h1>The embedded voice</h1>
<p>Sentences that no stage of its training saw. Teacher: the Piper voice that it learnt from. Codes:
the teacher's speech as 25 speech tokens a second, through flow and vocoder. Text: the talker's
own speech tokens, through the same. Mel spectrograms, 0 to 12 kHz from below.</p>
<table><tr><th>teacher<th>codes<th>text</tr>
$rows
</table></html>
""")


def picture(samples: np.ndarray) -> bytes:
    """A mel spectrogram as PNG."""
    mel = flow_mel(samples.astype(np.float32)).T[::-1]
    file = io.BytesIO()
    image.imsave(file, mel, vmin=-11, vmax=2, cmap="magma", format="png")
    return file.getvalue()


def sound(samples: np.ndarray) -> bytes:
    """Opus in Ogg."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, format="OGG", subtype="OPUS")
    return file.getvalue()


def cell(samples: np.ndarray) -> str:
    """What is seen and heard of one sound."""
    seen, heard = (base64.b64encode(of(samples)).decode() for of in (picture, sound))
    return (
        f'<td><img alt="" src="data:image/png;base64,{seen}">'
        f'<audio controls preload="none" src="data:audio/ogg;base64,{heard}"></audio>'
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/embedded_voice.html"))
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--package", type=Path, default=FOLDER)
    parser.add_argument("--held", type=Path, default=HELD)
    args = parser.parse_args()
    sentences = read_held(args.held, "test", None)
    # Evenly over the split, which is in order of length.
    chosen = sentences[:: max(1, len(sentences) // args.count)][: args.count]
    package, row, rows = Package(args.package), Row(), []
    ways = teacher(row), codec(package, row), whole(package, row)
    for place, sentence in enumerate(chosen):
        sounds = (resample(*way(sentence, place), RATE_HZ) for way in ways)
        rows.append(f'<tr><th colspan="3">{html.escape(sentence.text)}</tr>')
        rows.append("<tr>" + "".join(map(cell, sounds)) + "</tr>")
    args.output.write_text(PAGE.substitute(rows="\n".join(rows)), encoding="utf-8")
    print(args.output)


if __name__ == "__main__":
    main()
