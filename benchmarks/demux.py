"""How many ids a second the demultiplexer takes on one core, and how long each event waits for it.

A synthetic reply of Step-Audio 2's form (one text and four audio tokens in turn, particles in the
text, the speech longer than the text), in groups as a server sends them. With text that nothing
voices as a second case: every id is text, which is the slowest.

    python -m benchmarks.demux [--replies N] [--group N] [--json]
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from duologue.lm.demux import Demux
from duologue.lm.formats import find_family
from duologue.lm.tokenizer import Vocab
from duologue.lm.vocabulary import Vocabulary

TEXT = (
    "Well, (laughs) let me look that up for you. 今天天气很好，我们去公园走走吧。 The next train "
    "leaves at 7:45 [breath] from platform 3, and it takes 20 minutes. *sighs* Or you could walk: "
    "that is 3 < 5 km, mostly along the river (it is flat). "
)


def vocabulary() -> Vocabulary:
    """Step-Audio 2's, with a small tokenizer trained on the text."""
    profile = find_family("step-audio2")
    names = [special.name for special in profile.specials if special.name]
    audio = [f"<audio_{n}>" for n in range(6562)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    special = [name for name in names if name not in audio]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special + audio])
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        return Vocabulary(profile, Vocab(Path(folder)))


def streams(vocabulary: Vocabulary) -> dict[str, tuple[str | None, list[int]]]:
    """(prefix, ids) of one reply of each kind."""
    assert vocabulary.vocab and vocabulary.books[0].first is not None
    first, vocab = vocabulary.books[0].first, vocabulary.vocab
    ids_of = {vocab.pieces[token]: token for token in range(vocab.size - 6600)}
    text = [ids_of[piece] for piece in split(TEXT.encode(), ids_of)]
    audio = iter(first + 7 * n % 6561 for n in range(100_000))
    pad, end = vocab.id_of("<tts_pad>"), vocab.id_of("<|EOT|>")
    spoken = []
    for token in text + [pad] * len(text):
        spoken += [token, *(next(audio) for _ in range(4))]
    return {"ta4": ("tts_start", [*spoken, end]), "text": (None, [*text * 4, end])}  # type: ignore


def split(text: bytes, pieces: dict[bytes, int]) -> Iterator[bytes]:
    """The longest known piece at each place."""
    longest = max(map(len, pieces))
    while text:
        size = next(n for n in range(min(longest, len(text)), 0, -1) if text[:n] in pieces)
        yield text[:size]
        text = text[size:]


def replay(vocabulary: Vocabulary, prefix: str | None, chunks: list[list[int]], turn: int):
    """Each push of one reply."""
    demux = Demux(vocabulary, turn_id=turn, prefix=prefix)
    for chunk in chunks:
        yield demux.push(chunk)
    if not demux.ended:
        raise RuntimeError("the reply did not end")


def measure(
    vocabulary: Vocabulary, prefix: str | None, ids: list[int], group: int, replies: int
) -> dict[str, float]:
    """Ids a second of the median reply, and the time of a push that gave events.

    CPU time: other processes cost only what they take from the caches.
    """
    chunks = [ids[start : start + group] for start in range(0, len(ids), group)]
    spent = []
    for turn in range(replies):
        began = time.thread_time()
        for _ in replay(vocabulary, prefix, chunks, turn):
            pass
        spent.append(time.thread_time() - began)
    waits = []
    for turn in range(replies):
        pushes, began = replay(vocabulary, prefix, chunks, turn), time.thread_time()
        for events in pushes:
            now = time.thread_time()
            if events:
                waits.append(now - began)
            began = time.thread_time()
    return {
        "ids": len(ids) * replies,
        "ids_per_s": round(len(ids) / statistics.median(spent)),
        "best_ids_per_s": round(len(ids) / min(spent)),
        "event_p50_ms": round(statistics.median(waits) * 1e3, 4),
        "event_p99_ms": round(statistics.quantiles(waits, n=100)[98] * 1e3, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--replies", type=int, default=100)
    parser.add_argument("--group", type=int, action="append", help="ids a push; may be repeated")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known = vocabulary()
    rows = []
    gc.freeze()
    for name, (prefix, ids) in streams(known).items():
        for group in options.group or (1, 5, 25):
            measure(known, prefix, ids, group, replies=2)
            row = measure(known, prefix, ids, group, options.replies)
            rows.append({"stream": name, "group": group, **row})
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'stream':<8}{'group':>6}{'ids/s':>12}{'best':>12}{'p50 ms':>10}{'p99 ms':>10}")
    for row in rows:
        speeds = f"{row['ids_per_s']:>12,}{row['best_ids_per_s']:>12,}"
        waits = f"{row['event_p50_ms']:>10}{row['event_p99_ms']:>10}"
        print(f"{row['stream']:<8}{row['group']:>6}{speeds}{waits}")


if __name__ == "__main__":
    main()
