"""A turn's events as requests to a speech engine, its marks and the words in their places."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from duologue.particles.render import Rendered, Renderer
from duologue.particles.scanner import Event, Particle, Text
from duologue.particles.taxonomy import GOVERNING, Kind, Span


@dataclass(frozen=True, slots=True)
class Utterance:
    """One request to a speech engine.

    Attributes:
        text: what the engine reads, its own marks included; "" where there is nothing to say.
        words: what is to be shown and remembered of it.
        parameters: what goes beside the text, by the engine's own names.
        stripped: the particles that the engine has nothing for.
    """

    text: str
    words: str
    parameters: dict[str, str | float | tuple[float, ...]]
    stripped: tuple[Particle, ...]


@dataclass(slots=True)
class _Draft:
    parts: list[tuple[str, bool]] = field(default_factory=list)
    """(text, whether it is a native mark), neighbours of the same kind joined."""
    words: str = ""
    stripped: list[Particle] = field(default_factory=list)
    open: list[Particle] = field(default_factory=list)
    """Ranges that have begun and not ended."""

    def add(self, text: str, native: bool = False) -> None:
        if self.parts and self.parts[-1][1] is native:
            text = self.parts.pop()[0] + text
        self.parts.append((text, native))

    def say(self, text: str) -> None:
        # Where a mark is taken out, the blanks at its sides meet.
        if not self.words[-1:].strip() and self.stripped:
            text = text.lstrip(" ")
        self.words += text
        self.add(text)

    @property
    def begun(self) -> bool:
        """Whether it has words; marks alone go with the words that follow."""
        return any(map(str.isalnum, self.words))


class Composer:
    """Composes one turn's requests, clause by clause or all at once.

    A mood, a manner or a language holds until the next of its kind, and from one call to the next;
    where it changes and the engine takes it for whole requests only, a new request begins. Where
    an engine can only take one of several at a time, the later of `Kind` counts.

    Args:
        renderer: the engine's way with particles.
    """

    def __init__(self, renderer: Renderer):
        self._renderer = renderer
        self._governing: dict[Kind, tuple[Particle, Rendered]] = {}
        self._draft = _Draft()
        self._done: list[Utterance] = []

    def compose(self, events: Iterable[Event]) -> list[Utterance]:
        """Returns the requests for a whole stretch of a turn, such as a clause.

        Raises:
            InputError: the renderer refuses a particle.
        """
        self._draft, self._done = _Draft(), []
        for event in _paired(events):
            if isinstance(event, Text):
                self._draft.say(event.text)
            elif event.kind in GOVERNING:
                self._govern(event)
            else:
                self._place(event)
        self._finish()
        return self._done

    def _place(self, particle: Particle) -> None:
        """Puts a mark, or words for it, where it stands."""
        rendered = self._renderer.render(particle)
        if rendered.text is None:
            if not particle.closes:
                self._draft.stripped.append(particle)
        elif rendered.native:
            self._draft.add(rendered.text, native=True)
        else:
            self._draft.say(rendered.text)
        if particle.closes:
            self._draft.open = [other for other in self._draft.open if other.name != particle.name]
        elif particle.span is Span.RANGE and self._ends(particle).native:
            self._draft.open.append(particle)

    def _ends(self, particle: Particle) -> Rendered:
        """What ends a range."""
        return self._renderer.render(replace(particle, closes=True))

    def _govern(self, particle: Particle) -> None:
        """Lets a mood, a manner or a language hold from here, or ends it."""
        kind = particle.kind
        old, was = self._governing.get(kind, (None, Rendered()))
        if particle.closes and (old is None or old.name != particle.name):
            return
        rendered = Rendered() if particle.closes else self._renderer.render(particle)
        if rendered.governs and rendered == was:
            return
        if rendered.governs or old:
            self._cut()
            self._governing.pop(kind, None)
        if rendered.governs:
            self._governing[kind] = particle, rendered
        elif rendered.text is not None:
            self._draft.say(rendered.text)
        elif not particle.closes:
            self._draft.stripped.append(particle)

    def _cut(self) -> None:
        """Ends the request, if it has begun; the next goes on within its ranges."""
        if not self._draft.begun:
            return
        still = self._draft.open
        self._finish()
        for particle in still:
            self._place(particle)

    def _finish(self) -> None:
        for particle in reversed(self._draft.open):
            self._place(replace(particle, closes=True))
        draft, self._draft = self._draft, _Draft()
        lead, parameters = "", {}
        for particle, rendered in self._by_rank():
            if (lead and rendered.leads) or parameters.keys() & rendered.parameters.keys():
                del self._governing[particle.kind]
                draft.stripped.append(particle)
                continue
            lead += rendered.text or ""
            parameters |= rendered.parameters
        text = "".join(t if native else self._renderer.literal(t) for t, native in draft.parts)
        if not draft.begun and not any(native for _, native in draft.parts):
            text = lead = ""
        if text or draft.words or draft.stripped:
            stripped = tuple(draft.stripped)
            self._done.append(Utterance(lead + text.strip(), draft.words, parameters, stripped))

    def _by_rank(self) -> list[tuple[Particle, Rendered]]:
        return [self._governing[kind] for kind in reversed(Kind) if kind in self._governing]


def _paired(events: Iterable[Event]) -> Iterator[Text | Particle]:
    """Gives text and particles; a range that lacks one end is a point or a prefix."""
    shown = [event for event in events if isinstance(event, Text | Particle)]
    begun: dict[str, int] = {}
    paired: set[int] = set()
    for at, event in enumerate(shown):
        if isinstance(event, Particle) and event.span is Span.RANGE:
            if not event.closes:
                begun[event.name] = at
            elif event.name in begun:
                paired |= {at, begun.pop(event.name)}
    for at, event in enumerate(shown):
        if isinstance(event, Text) or event.span is not Span.RANGE or at in paired:
            yield event
        elif event.kind in GOVERNING:
            yield event if event.closes else replace(event, span=Span.PREFIX)
        elif not event.closes:
            yield replace(event, span=Span.POINT)
