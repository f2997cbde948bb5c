"""What goes in and what comes out: A audio, T text; 1 the user's content, 2 the answer."""

from enum import StrEnum


class Mode(StrEnum):
    """The modes of speech-text models."""

    A1_T1 = "A1-T1"
    """Speech recognition."""
    A1_T2 = "A1-T2"
    """Speech in, an answer in text."""
    A1_T2A2 = "A1-T2A2"
    """Speech in, an answer in text and speech."""
    T1_T2 = "T1-T2"
    """Text chat."""
    T1_T2A2 = "T1-T2A2"
    """Text in, an answer in text and speech."""
    T1_A1 = "T1-A1"
    """Speech synthesis."""
    T1_A2 = "T1-A2"
    """Text in, an answer in speech alone."""

    @property
    def audio_in(self) -> bool:
        """Whether the model hears the user."""
        return self.value.startswith("A")

    @property
    def answers(self) -> bool:
        """Whether what comes out is an answer, not the user's content in another form."""
        return self.value.endswith(("T2", "A2"))

    @property
    def read(self) -> "Mode":
        """The mode that gives the same answer to a user whom the model reads, if there is one."""
        return {Mode.A1_T2: Mode.T1_T2, Mode.A1_T2A2: Mode.T1_T2A2}.get(self, self)

    @property
    def audio_out(self) -> bool:
        """Whether the model speaks."""
        return "A" in self.value.split("-")[1]
