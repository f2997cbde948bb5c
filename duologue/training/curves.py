"""The curves of all stages, from their logs, as one SVG."""

import json
from pathlib import Path

from duologue.errors import ModelError

STAGES = ("tokenizer", "flow", "hift", "talker")
HIDDEN = {"step", "seconds", "norm"}


def draw_curves(work: Path, output: Path) -> None:
    """Draw WORK/<stage>.log.jsonl of each stage that has one; held-out speech is dotted.

    Raises:
        ModelError: no stage has a log there.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    logs = {name: work / f"{name}.log.jsonl" for name in STAGES}
    found = {name: path for name, path in logs.items() if path.is_file()}
    if not found:
        raise ModelError(f"{work}: found no *.log.jsonl; run a stage of `duologue train` first")
    figure, axes = pyplot.subplots(1, len(found), figsize=(5 * len(found), 4), squeeze=False)
    for axis, (name, path) in zip(axes[0], found.items(), strict=True):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for key in sorted({key for line in lines for key in line} - HIDDEN):
            points = [(line["seconds"], line[key]) for line in lines if key in line]
            style = ":" if key.startswith(("dev", "held")) else "-"
            axis.plot(*zip(*points, strict=True), style, label=key)
        axis.set(title=name, xlabel="seconds", yscale="log")
        axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(output, metadata={"Date": None})
    pyplot.close(figure)
