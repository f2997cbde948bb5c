"""Phonemes from libespeak-ng in a process of its own: JSON lines in, JSON lines out.

espeak-ng is GPL-3.0. It is loaded here and nowhere else, and this file imports nothing of duologue.
Request {"voice": "en-us", "text": "..."}; answer {"clauses": [["hˈaɪ", ","], ...]} or {"error": s}.
"""

import ctypes
import ctypes.util
import json
import re
import sys

AUDIO_OUTPUT_SYNCHRONOUS = 2
CHARS_UTF8 = 1
PHONEMES_IPA = 2
DONT_EXIT = 0x8000

# The library reads one character past the space behind a clause before it returns.
CLOSING_MARK = re.compile(r"(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bSt)([.,;:!?])(?:\s+\S?)?$")


def load() -> ctypes.CDLL:
    """Load and initialise the library: the Python wheel's if it is installed, else the system's."""
    data = None
    try:
        import espeakng_loader

        path, data = espeakng_loader.get_library_path(), espeakng_loader.get_data_path()
    except ImportError:
        path = ctypes.util.find_library("espeak-ng")
    if path is None:
        raise OSError("libespeak-ng is not installed")
    lib = ctypes.CDLL(path)
    folder = data.encode() if data else None
    if lib.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, folder, DONT_EXIT) < 0:
        raise OSError("libespeak-ng cannot find its data")
    lib.espeak_TextToPhonemes.restype = ctypes.c_char_p
    return lib


def clauses(lib: ctypes.CDLL, voice: str, text: str) -> list[list[str]]:
    """IPA of each clause with the punctuation that closes it."""
    if lib.espeak_SetVoiceByName(voice.encode()):
        raise ValueError(f"espeak-ng has no voice {voice!r}")
    # Without a line's end espeak-ng keeps what follows a last full stop ("No. 5") and says it
    # before the next text.
    data = f"{text}\n".encode()
    rest = ctypes.c_char_p(data)
    found = []
    while rest.value:
        before = rest.value
        phonemes = lib.espeak_TextToPhonemes(ctypes.byref(rest), CHARS_UTF8, PHONEMES_IPA)
        read = before[: len(before) - len(rest.value or b"")].decode(errors="ignore")
        mark = CLOSING_MARK.search(read)
        found.append([(phonemes or b"").decode(), mark.group(1) if mark else ""])
    return found


def main() -> None:
    """Answer requests until standard input closes."""
    try:
        lib = load()
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = {"clauses": clauses(lib, request["voice"], request["text"])}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
