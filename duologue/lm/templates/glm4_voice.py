"""GLM-4-Voice, as web_demo.py of github.com/zai-org/GLM-4-Voice writes it.

The system prompt must ask for 13 text and 26 audio tokens in turns; there is always one. The first
two tokens are those that the model's own tokenizer puts before every text.
"""

from duologue.errors import UsageError
from duologue.lm.conversation import Answer, System, User
from duologue.lm.templates.checks import Asked, check_chat
from duologue.lm.templates.writer import Writer


def write(prompt: Writer, asked: Asked) -> None:
    """Write the prompt; what the model has said stands in it as it gave it."""
    check_chat(asked)
    if not isinstance(asked.items[0], System):
        texts, audios = asked.profile.interleave or (0, 0)
        raise UsageError(
            f"glm-4-voice needs a System as the first item, which asks for {texts} text tokens "
            f"followed by {audios} audio tokens"
        )
    heard = asked.profile.heard
    prompt.framing("[gMASK]<sop>")
    for item in asked.items:
        match item:
            case System():
                prompt.framing("<|system|>\n")
                prompt.content(item.text)
            case User() if isinstance(item.audio, tuple) and heard:
                prompt.framing(f"<|user|>\n{heard.opens}")
                prompt.spelled(item.audio)
                prompt.framing(heard.closes)
            case User():
                prompt.framing("<|user|>\n")
                prompt.content(item.text)
            case Answer():
                _open(prompt)
                prompt.voiced(item.text, item.audio, None)
    _open(prompt)


def _open(prompt: Writer) -> None:
    prompt.framing("<|assistant|>streaming_transcription\n")
