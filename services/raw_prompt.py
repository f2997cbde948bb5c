"""How services ask a speech-text LM: by a prompt of our own writing."""

from collections.abc import Sequence
from dataclasses import replace

from duologue.lm.conversation import Item
from duologue.lm.engine import Engine, Request
from duologue.lm.modes import Mode
from duologue.lm.prompt import IdsPart
from duologue.lm.templates import prompt_ids, render
from duologue.lm.vocabulary import Vocabulary


def raw_request(
    engine: Engine,
    vocabulary: Vocabulary,
    defaults: Request,
    items: Sequence[Item],
    mode: Mode,
    thought: str | None = None,
) -> Request:
    """A request of these items, as ids where the engine takes some and a tokenizer makes them.

    `thought` is that of `render`.

    Raises:
        UsageError: the family cannot do this.
    """
    parts = render(vocabulary, items, mode, defaults.tools, thought=thought)
    own_ids = any(book.token is None for book in vocabulary.profile.codebooks)
    if vocabulary.vocab is not None and engine.capabilities.prompt_ids and not own_ids:
        parts = (IdsPart(tuple(prompt_ids(vocabulary, parts))),)
    return replace(defaults, messages=[], tools=[], parts=parts)
