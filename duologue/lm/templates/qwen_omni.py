"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: ChatML, tools and results as Qwen marks them.

How tools are explained is in our own words; a server that renders chat messages itself uses the
model's.
"""

from itertools import groupby

from duologue.lm.conversation import Answer, CallResult, Item, System, User
from duologue.lm.prompt import AudioPart
from duologue.lm.templates.checks import Asked, check_chat
from duologue.lm.templates.writer import Writer

_TOOLS = "# Tools\n\nThe functions that you can call, one a line:\n<tools>"
_CALLS = (
    "\n</tools>\n\nTo call one, write a JSON object with its name and arguments inside tags:\n"
    '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
)


def write(prompt: Writer, asked: Asked) -> None:
    """Write the prompt of the model that hears and writes."""
    check_chat(asked)
    items = asked.items
    system = items[0] if isinstance(items[0], System) else None
    if system or asked.tools:
        prompt.framing("<|im_start|>system\n")
        prompt.content(system.text if system else "")
        if asked.tools:
            _write_tools(prompt, asked, "\n\n" if system else "")
        prompt.framing("<|im_end|>\n")
    for is_result, group in groupby(items[1:] if system else items, _is_result):
        if is_result:
            _write_results(prompt, list(group))
        else:
            for item in group:
                _write_message(prompt, item)
    prompt.framing("<|im_start|>assistant\n")


def _is_result(item: Item) -> bool:
    return isinstance(item, CallResult)


def _write_tools(prompt: Writer, asked: Asked, before: str) -> None:
    prompt.framing(before + _TOOLS)
    for tool in asked.tools:
        prompt.framing("\n")
        prompt.value(tool)
    prompt.framing(_CALLS)


def _write_message(prompt: Writer, item: Item) -> None:
    match item:
        case System():
            prompt.framing("<|im_start|>system\n")
            prompt.content(item.text)
        case User():
            prompt.framing("<|im_start|>user\n")
            if isinstance(item.audio, AudioPart):
                prompt.sound(item.audio)
            else:
                prompt.content(item.text)
        case Answer():
            prompt.framing("<|im_start|>assistant\n")
            _write_answer(prompt, item)
    prompt.framing("<|im_end|>\n")


def _write_answer(prompt: Writer, answer: Answer) -> None:
    prompt.content(answer.text)
    for place, call in enumerate(answer.calls):
        prompt.framing("\n<tool_call>\n" if place or answer.text else "<tool_call>\n")
        prompt.json(f'{{"name": "{call.name}", "arguments": {call.arguments}}}')
        prompt.framing("\n</tool_call>")


def _write_results(prompt: Writer, results: list[Item]) -> None:
    """Write the results of one answer's calls as one message, in the order of the calls."""
    prompt.framing("<|im_start|>user")
    for result in results:
        if isinstance(result, CallResult):
            prompt.framing("\n<tool_response>\n")
            prompt.content(result.content)
            prompt.framing("\n</tool_response>")
    prompt.framing("<|im_end|>\n")
