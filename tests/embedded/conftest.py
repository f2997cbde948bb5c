"""A tiny embedded voice with random weights, packed once."""

import shutil

import pytest
import torch

from duologue.embedded.package import Package
from duologue.training.pack import pack
from tests.embedded.tiny import CARD, SOUNDS, SPEAKER, decoder, talker


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """The folder; not to be written to."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("embedded") / "voice"
    pack(talker(), decoder(), SPEAKER, folder, card=CARD, sounds=SOUNDS)
    return folder


@pytest.fixture(scope="session")
def package(packed):
    return Package(packed)


@pytest.fixture
def copied(packed, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(packed, tmp_path / "copy")
