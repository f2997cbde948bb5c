"""The model hub as a source: pinned files of catalogue models, and any repository by `hub:`."""

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import requests

from duologue.errors import ModelError, UsageError
from duologue.models.catalogue import Entry, relative_path
from duologue.models.download import Downloader, without_secrets

PROBE_S = 3
PREFIX = "hub:"
FORM = re.compile(r"hub:(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^:]+))?(:(?P<file>.+))?")


class HubRef(NamedTuple):
    """A repository, or one file in it."""

    repo: str
    revision: str | None
    file: str | None


def parse(ref: str) -> HubRef:
    """Read hub:ORG/REPO[@REVISION][:FILE].

    Raises:
        UsageError: the text has another form.
    """
    match = FORM.fullmatch(ref)
    try:
        if match is None:
            raise ValueError("it has another form")
        file = match["file"] and relative_path(match["file"])
    except ValueError as error:
        raise UsageError(
            f"{ref!r} does not name a hub model: {error}; expected hub:ORG/REPO[@REVISION][:FILE]"
        ) from error
    return HubRef(match["repo"], match["revision"], file)


def snapshot(ref: str, *, offline: bool) -> Path:
    """The folder of a hub repository, or the path of one file, in the hub's own cache.

    Args:
        ref: hub:ORG/REPO[@REVISION][:FILE].
        offline: take what is in the cache and make no call.

    Raises:
        UsageError: `ref` has another form.
        ModelError: it is not there and cannot be fetched.
    """
    repo, revision, file = parse(ref)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as error:
        raise ModelError(f"{ref} needs the package huggingface_hub; install it.") from error
    try:
        folder = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=glob.escape(file) if file else None,
            local_files_only=offline,
        )
    except (OSError, ValueError, EntryNotFoundError) as error:
        reason = "offline and not in the hub's cache" if offline else str(error).partition("\n")[0]
        raise ModelError(
            f"cannot fetch {ref}: {reason}. Check the name, the network and HF_TOKEN, "
            "or give a local folder instead."
        ) from error
    path = Path(folder) / (file or "")
    if not path.exists():
        raise ModelError(f"{ref}: the repository has no file {file!r}. Check the name.")
    return path


@dataclass(slots=True)
class Hub:
    """Fetches the pinned files of catalogue models."""

    endpoint: str
    downloader: Downloader
    name: str = "hub"

    def size(self, entry: Entry) -> int:
        """Bytes to download."""
        return entry.size

    def fetch(self, entry: Entry, work: Path, staging: Path) -> None:
        """Put the files of `entry` into `staging`.

        Args:
            entry: the model.
            work: folder for downloads; what lies there from an earlier run is used.
            staging: folder that receives the files.

        Raises:
            ModelError: a file is not to be had or has another hash.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        headers = build_hf_headers()
        with self.downloader.all_or_nothing():
            for file in entry.files:
                url = hf_hub_url(
                    entry.hub.repo,
                    file.hub_path,
                    revision=entry.hub.revision,
                    endpoint=self.endpoint,
                )
                self.downloader.fetch(
                    url, work / file.sha256, size=file.size, sha256=file.sha256, headers=headers
                )
        for file in entry.files:
            (work / file.sha256).replace(staging / file.name)


def connect(downloader: Downloader) -> Hub | None:
    """The hub, if its library is installed, not set to offline, and the host answers soon."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    if constants.is_offline_mode():
        return None
    try:
        downloader.session.head(constants.ENDPOINT, timeout=PROBE_S)
    except requests.RequestException:
        address = without_secrets(constants.ENDPOINT)
        downloader.progress.note(f"the hub {address} does not answer; it is left out")
        return None
    return Hub(constants.ENDPOINT, downloader)
