"""One strict set-up: unknown keys name the nearest one, flags beat variables beat the file."""

from pathlib import Path
from typing import get_args

import pytest

from bots.cli import CONFIGS
from duologue.config import BotConfig, Section, load_config
from duologue.errors import ConfigError

LOCAL = ["token2wav.model=m", "token2wav.voice=ada"]
REMOTE = ["token2wav.engine=remote", "token2wav.urls=[grpc://a:1]"]


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "bot.yaml"
    path.write_text("lang: en\nlm: {max_tokens: 11}\n")
    return path


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_our_set_ups_are_valid(path):
    load_config(path, environ={})


def test_every_key_says_what_it_is():
    sections, bare = [("", BotConfig)], []
    for where, section in sections:
        for name, field in section.model_fields.items():
            kinds = [k for k in (field.annotation, *get_args(field.annotation)) if is_section(k)]
            sections += [(f"{where}{name}.", kind) for kind in kinds]
            bare += [] if kinds or field.description else [f"{where}{name}"]
    assert len(sections) == 15 and not bare


def is_section(kind) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def test_flags_beat_variables_beat_the_file(file):
    environ = {"DUOLOGUE_LM__MAX_TOKENS": "22", "DUOLOGUE_ASR__THREADS": "2"}
    assert load_config(file, environ={}).lm.max_tokens == 11
    assert load_config(file, environ=environ).lm.max_tokens == 22
    config = load_config(file, environ=environ, flags=["lm.max_tokens=33"])
    assert (config.lm.max_tokens, config.asr.threads) == (33, 2)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("lm.max_token=3", "lm.max_token: unknown key; did you mean max_tokens?"),
        ("romm.port=1", "romm: unknown key; did you mean room?"),
        ("lm.api_key=secret", "lm.api_key: unknown key"),
        ("lm.max_tokens=many", "lm.max_tokens: Input should be a valid integer"),
        ("vad.engine=ears", "vad.engine: Input should be 'silero' or 'webrtcvad'"),
        ("lang.x=1", "lang is not a section"),
        ("lm.max_tokens", "expected KEY=VALUE"),
        ("lm.system={", "not YAML"),
        ("lm.examples=[{user: a, assitant: b}]", "did you mean assistant?"),
    ],
)
def test_wrong_values_are_explained(file, flag, said):
    with pytest.raises(ConfigError, match=".*") as error:
        load_config(file, environ={}, flags=[flag])
    assert said in str(error.value)


def test_a_wrong_value_of_the_environment_is_not_blamed_on_the_file(file):
    with pytest.raises(ConfigError) as error:
        load_config(file, environ={"DUOLOGUE_LM__THREADS": "many", "DUOLOGUE_LM__MAX_TOKEN": "3"})
    assert "DUOLOGUE_LM__THREADS: lm.threads: " in str(error.value)
    assert "DUOLOGUE_LM__MAX_TOKEN: lm.max_token: unknown key" in str(error.value)
    with pytest.raises(ConfigError, match="^DUOLOGUE_FOO__BAR: foo: unknown key"):
        load_config(file, environ={"DUOLOGUE_FOO__BAR": "1"})
    assert str(file) not in str(error.value)


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "!!python/object/apply:os.system ['true']"])
def test_files_that_are_no_set_up(file, content):
    file.write_text(content)
    with pytest.raises(ConfigError, match="bot.yaml"):
        load_config(file, environ={})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["token2wav.engine=remote", "token2wav.voice=ada"], "remote needs urls too"),
        (REMOTE, "remote needs voice too"),
        (["token2wav.urls=[grpc://a:1]", *LOCAL], "cudagraph runs here: leave urls out"),
    ],
)
def test_a_remote_decoder_is_named_by_its_urls(file, flags, says):
    with pytest.raises(ConfigError, match=says):
        load_config(file, flags=flags)
    config = load_config(file, flags=[*REMOTE, "token2wav.voice=ada"])
    assert config.token2wav and config.token2wav.urls == ["grpc://a:1"]
