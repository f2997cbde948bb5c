"""Takes the markup off a piece of Markdown that may begin or end anywhere in its document."""

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

# Clauses come without their indentation, and "[Note]: text" in speech is no reference.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
_PARSER.disable(["code", "reference"])

_FENCE = re.compile(r"\s*(?:[-*>]\s+)*(`{3,}|~{3,})([^`]*)$")
_RULE = re.compile(r"[\s|:=-]*[-=]{3,}[\s|:=-]*$")
_TIMES = re.compile(r"(?<=\b\w)\*(?=\w\b)|(?<=\d)\*(?=\d)")
_LINK_REST = re.compile(r"\]\([^)\s]*\)")
_TAG = re.compile(
    r"</?(?:a|b|i|u|s|p|em|br|hr|ul|ol|li|td|tr|th|div|img|sub|sup|pre|code|span|small|strong"
    r"|table|details|summary|h[1-6])(?:\s+[\w-]+=\S+)*\s*/?>",
    re.IGNORECASE,
)
_ENDS = re.compile(r"[.!?:;,…。！？：；，、]\W*$")


class Flattener:
    """Turns Markdown into plain text, clause after clause; a code fence may stay open between.

    Args:
        stop: what ends a block, such as a heading or list item, that has no mark of its own.
    """

    def __init__(self, stop: str):
        self._stop = stop
        self._fence = ""

    def reset(self) -> None:
        """Closes an open fence."""
        self._fence = ""

    def flatten(self, clause: str) -> str:
        """Returns the words of the next clause in one line, with code blocks left out."""
        lines = [self._row(line) for line in clause.split("\n") if self._is_prose(line)]
        blocks = _blocks(_PARSER.parse(_TIMES.sub("×", "\n".join(lines))))
        said = [text for block in blocks if (text := block.strip())]
        ended = [text if _ENDS.search(text) else text + self._stop for text in said[:-1]]
        return " ".join(ended + said[-1:])

    def _is_prose(self, line: str) -> bool:
        """Follows code fences; says whether the line is neither code nor a ruler."""
        fence = _FENCE.match(line)
        if self._fence:
            if fence and fence[1].startswith(self._fence) and not fence[2].strip():
                self._fence = ""
            return False
        if fence:
            self._fence = fence[1]
            return False
        return not _RULE.match(line)

    def _row(self, line: str) -> str:
        """Reads a table row as a list of its cells; leaves another line as it is."""
        if not line.lstrip().startswith("|"):
            return line
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        return f"\n{', '.join(filter(None, cells))}\n"


def _blocks(tokens: list[Token]) -> list[str]:
    """Returns the text of each block, a numbered item with its number."""
    blocks: list[str] = []
    number = ""
    for token in tokens:
        if token.type == "list_item_open":
            number = f"{token.info}. " if token.info else ""
        elif token.type == "list_item_close" and number:
            blocks.append(number)
            number = ""
        elif token.type == "inline":
            blocks.append(number + _inline(token.children or []))
            number = ""
    return blocks


def _inline(tokens: list[Token]) -> str:
    """Joins the text of inline tokens: link texts, image descriptions and inline code count."""
    text = "".join(
        " " if token.type in ("softbreak", "hardbreak") else token.content for token in tokens
    )
    return _TAG.sub(" ", _LINK_REST.sub(" ", text))
