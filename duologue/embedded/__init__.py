"""The embedded voice: a talker and a token2wav that ship with the package, for one CPU core."""

from pathlib import Path

FOLDER = Path(__file__).with_name("data")
"""Where it lies; see `duologue.embedded.package`."""
