"""What `benchmarks.token2wav` measured, as a page and a plot for docs/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN = 420, 260, 52
COLOURS = ("#0a6b66", "#d1501f")
Points = Sequence[tuple[float, float]]


def write_docs(figures: dict[str, Any], folder: Path) -> None:
    """Write token2wav.svg and token2wav_figures.md."""
    (folder / "token2wav.svg").write_text(plots(figures), encoding="utf-8")
    (folder / "token2wav_figures.md").write_text(page(figures), encoding="utf-8")


def plots(figures: dict[str, Any]) -> str:
    """Latency over sessions beside RTF over batch."""
    curve = {int(count): row for count, row in figures["sessions"]["curve"].items()}
    late = {
        name: [(count, row[key]) for count, row in sorted(curve.items())]
        for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"))
    }
    rtf = {
        "offline": [
            (int(name.removeprefix("ours batch ")), value)
            for name, value in figures["offline"]["rtf"].items()
            if name.startswith("ours")
        ]
    }
    panels = [
        panel(0, "a chunk's latency, ms, over sessions", late, limit=500),
        panel(WIDTH, "real-time factor, offline, over batch", rtf),
    ]
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    background = f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, background, *panels, "</svg>"]) + "\n"


def panel(left: float, title: str, lines: dict[str, Points], limit: float | None = None) -> str:
    """One plot from zero up; `limit` is a level to mark."""
    right = max(x for points in lines.values() for x, _ in points)
    top = max([y for points in lines.values() for _, y in points] + [limit or 0]) * 1.08

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
        return left + MARGIN + x / right * across, HEIGHT - MARGIN - y / top * up

    (x0, y0), (x1, y1) = at(0, 0), at(right, top)
    parts = [
        text(left + MARGIN, 24, title, size=13),
        f'<path d="M{x0:.1f} {y1:.1f}V{y0:.1f}H{x1:.1f}" fill="none" stroke="#555"/>',
    ]
    for x in sorted({x for points in lines.values() for x, _ in points}):
        parts.append(text(at(x, 0)[0], y0 + 16, f"{x:g}", anchor="middle"))
    for y in (top / 2.16, top / 1.08):
        parts.append(text(x0 - 6, at(0, y)[1] + 4, f"{y:.3g}", anchor="end"))
    if limit:
        y = at(0, limit)[1]
        parts.append(f'<path d="M{x0:.1f} {y:.1f}H{x1:.1f}" stroke="#999" stroke-dasharray="4"/>')
    for (name, points), colour in zip(lines.items(), COLOURS, strict=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = at(*points[-1])
        parts.append(text(x + 5, y + 4, name, colour=colour))
    return "\n".join(parts)


def text(
    x: float, y: float, content: str, *, size: int = 11, anchor: str = "start", colour="#333"
) -> str:
    """A label."""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{content}</text>'


def page(figures: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "# token2wav on a GPU: figures",
        "",
        "Made by `python -m benchmarks.token2wav` on one NVIDIA H200, random weights of the public",
        "size. The reference is stepaudio2-minicpmo 0.1.1 in the same run. Times end when the",
        "samples lie on the host. TensorRT is not among the rows: it cannot run there.",
        "",
        "![Latency over sessions, and RTF over batch](token2wav.svg)",
        "",
        "| one session, 25-token chunks, 5 s prompt | p50 ms | p99 ms |",
        "|---|---|---|",
    ]
    streaming = dict(figures["streaming"])
    faster = streaming.pop("speed-up over the faster reference")
    for name, row in streaming.items():
        lines.append(f"| {name} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} |")
    first = figures["first_sound"]
    lines += [
        "",
        f"{faster:.1f} times the faster reference.",
        f"First sound of a warm voice: {first['tokens']} tokens to {first['samples']} samples "
        f"({first['sound_ms']:.0f} ms; {first['withheld_samples']} withheld) in "
        f"{first['p50_ms']:.2f} ms p50, {first['p99_ms']:.2f} ms p99.",
        "",
        "| offline, 26 clips of 170 s | seconds | RTF |",
        "|---|---|---|",
    ]
    offline = figures["offline"]
    for name, spent in offline["seconds"].items():
        lines.append(f"| {name} | {spent:.2f} | {offline['rtf'][name]:.4f} |")
    lines += ["", "| speaker embedding, 5 s clip | p50 ms | p99 ms |", "|---|---|---|"]
    for name, row in figures.get("campplus", {}).items():
        lines.append(f"| {name} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} |")
    many = figures["sessions"]
    lines += [
        "",
        "| sessions with one voice, 1 s of tokens a second each | p50 ms | p99 ms | max ms |",
        "|---|---|---|---|",
    ]
    rows = list(many["curve"].items())
    if soak := many.get("soak"):
        rows.append((f"{soak['sessions']}, {soak['chunks'] // soak['sessions']} s", soak))
    for name, row in rows:
        lines.append(
            f"| {name} | {row['p50_ms']:.0f} | {row['p99_ms']:.0f} | {row['max_ms']:.0f} |"
        )
    lines += [
        "",
        f"State of a session: {many['state_mb']:.0f} MB; "
        f"GPU memory in all: {many['gpu_gb']:.0f} GB.",
    ]
    return "\n".join(lines) + "\n"
