"""A text said by a speech-text LM (T1-A1): the same for the pipeline and for the speech server."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from duologue.errors import DuologueError, EngineError
from duologue.lm.chunks import WHOLE
from duologue.lm.conversation import Item
from duologue.lm.demux import Demux
from duologue.lm.engine import Engine, Finish, Ids, Request, TextDelta
from duologue.lm.events import AudioTokens, EndReason, Event, TurnEnd
from duologue.lm.modes import Mode
from duologue.lm.raw import raw_request
from duologue.lm.templates import prompt_prefix
from duologue.lm.vocabulary import Vocabulary


async def say(
    engine: Engine,
    vocabulary: Vocabulary,
    defaults: Request,
    items: Sequence[Item],
    *,
    turn_id: int = 0,
    sounds: bool = True,
) -> AsyncGenerator[AudioTokens, None]:
    """The speech of one text, in tokens of the last codebook, which tells the time.

    Closing it aborts the model's request.

    Args:
        engine: Who is asked.
        vocabulary: Its family, with the tokenizer.
        defaults: Sampling; the prompt is replaced.
        items: What stands before the text, and the text as a User.
        turn_id: Of the events.
        sounds: Whether there is anything in the text to pronounce.

    Raises:
        EngineError: the model or its server failed in whatever way, or the speech is missing or
            breaks off.
        UsageError: the family cannot do this.
    """
    book = vocabulary.profile.codebooks[-1].name
    count, whole = 0, False
    try:
        async with aclosing(_events(engine, vocabulary, defaults, items, turn_id)) as events:
            async for event in events:
                if isinstance(event, AudioTokens) and event.codebook == book:
                    count += len(event.tokens)
                    yield event
                elif isinstance(event, TurnEnd):
                    whole = event.reason is EndReason.STOP
    except DuologueError:
        raise
    except Exception as error:
        raise EngineError(f"the talker failed: {type(error).__name__}: {error}") from error
    if not whole or (sounds and not count):
        # Without the text: what callers say is no business of the log.
        raise EngineError(f"the talker's speech {'breaks off' if count else 'is missing'}")


async def _events(
    engine: Engine, vocabulary: Vocabulary, defaults: Request, items: Sequence[Item], turn_id: int
) -> AsyncGenerator[Event, None]:
    request = raw_request(engine, vocabulary, defaults, items, Mode.T1_A1)
    prefix = prompt_prefix(vocabulary.profile, Mode.T1_A1)
    demux, reason = Demux(vocabulary, turn_id=turn_id, prefix=prefix), EndReason.CUT
    async with aclosing(engine.stream(request)) as steps:  # type: ignore[type-var]
        async for step in steps:
            events: list[Event] = []
            if isinstance(step, Ids):
                events = demux.push(step.ids)
            elif isinstance(step, TextDelta):
                events = demux.push_text(step.text)
            elif isinstance(step, Finish) and step.reason in WHOLE:
                reason = EndReason.STOP
            for event in events:
                yield event
            if demux.ended:
                break
    for event in demux.finish(reason):
        yield event
