"""The model hub as a source: pinned files of catalogue models, and any repository by `hub:`."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import requests

from duologue.errors import ModelError, UsageError
from duologue.models.catalogue import Entry, relative_path
from duologue.models.download import Downloader
