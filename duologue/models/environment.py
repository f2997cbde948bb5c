"""What the environment says about models."""

import os
from pathlib import Path

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from duologue.errors import ConfigError


def _user_cache() -> Path:
    return platformdirs.user_cache_path("duologue", appauthor=False) / "models"


class Environment(BaseModel):
    """The environment variables of the store."""

    model_config = ConfigDict(frozen=True)

    DUOLOGUE_MODELS: Path = Field(default_factory=_user_cache)
    DUOLOGUE_OFFLINE: bool = False
    DUOLOGUE_HUB: bool = True

    @classmethod
    def read(cls) -> "Environment":
        """Read the variables that are set and not empty.

        Raises:
            ConfigError: a switch is neither on nor off.
        """
        given = {name: value for name in cls.model_fields if (value := os.environ.get(name))}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            name = error.errors()[0]["loc"][0]
            raise ConfigError(f"{name} is {given[str(name)]!r}, expected on or off") from error
