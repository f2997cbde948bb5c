"""What all sections of a set-up share."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the set-up; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
