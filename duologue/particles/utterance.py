"""A turn's events as requests to a speech engine, its marks and the words in their places."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from duologue.particles.render import Rendered, Renderer
from duologue.particles.scanner import Event, Particle, Text
from duologue.particles.taxonomy import GOVERNING, SOUNDS, Kind, Span

_EDGES = re.compile(r"([\s,.;:!?…，。！？；：、]*)(.*?)(\s*)", re.DOTALL)
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One request to a speech engine.

    Attributes:
        text: what the engine reads, its own marks included; "" where there is nothing to say.
        words: what is to be shown and remembered of it.
        heard: the words as they came, and the sounds among them, in order.
        parameters: what goes beside the text, by the engine's own names.
        stripped: the particles that the engine has nothing for.
    """

    text: str
    words: str
    heard: tuple[Text | Particle, ...]
    parameters: dict[str, str | float | tuple[float, ...]]
    stripped: tuple[Particle, ...]


@dataclass(slots=True)
class _Draft:
    parts: list[tuple[str, bool]] = field(default_factory=list)
    """(text, whether it is a native mark), neighbours of the same kind joined."""
    words: str = ""
    heard: list[Text | Particle] = field(default_factory=list)
    stripped: list[Particle] = field(default_factory=list)
    open: list[Particle] = field(default_factory=list)
    """Ranges that have begun and not ended."""

    def add(self, text: str, native: bool = False) -> None:
        if self.parts and self.parts[-1][1] is native:
            text = self.parts.pop()[0] + text
        self.parts.append((text, native))

    def say(self, said: Text) -> None:
        last = self.heard[-1] if self.heard else None
        if isinstance(last, Text) and last.end == said.start:
            self.heard[-1] = Text(last.text + said.text, last.start, said.end)
        else:
            self.heard.append(said)
        text = said.text
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
        speakable: makes text that was written to be read, between two marks, one to be said.
    """

    def __init__(self, renderer: Renderer, speakable: Callable[[str], str] | None = None):
        self._renderer = renderer
        self._speakable = speakable
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
                self._draft.say(event)
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
            if particle.kind in SOUNDS and particle.span is Span.POINT:
                self._draft.heard.append(particle)
        else:
            self._draft.say(Text(rendered.text, particle.start, particle.end))
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
            self._draft.say(Text(rendered.text, particle.start, particle.end))
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
        text = self._text(draft.parts)
        if text or draft.words or draft.stripped:
            text = f"{lead}{text.strip()}" if text else ""
            heard, stripped = tuple(draft.heard), tuple(draft.stripped)
            self._done.append(Utterance(text, draft.words, heard, parameters, stripped))

    def _text(self, parts: list[tuple[str, bool]]) -> str:
        """What the engine reads; "" where that is neither a word nor a mark."""
        whole, says = "", False
        for text, native in parts:
            if not native:
                text = self._renderer.literal(self._said(text, behind=bool(whole)))
            says |= native or any(map(str.isalnum, text))
            whole += text
        return whole if says else ""

    def _said(self, text: str, behind: bool) -> str:
        """Ordinary text as it is said; `behind` a mark it goes on with what it begins with."""
        edges = _EDGES.fullmatch(text)
        if self._speakable is None or edges is None:
            return text
        lead, words, blank = edges.groups()
        said = self._speakable(words if behind else lead + words)
        return (_BLANKS.sub(" ", lead) if behind else "") + said + _BLANKS.sub(" ", blank)

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
