"""What all records of a run directory share."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from headrace.stages import EARLIER_NAMES


def _none_unless_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _under_present_names(seconds: Any) -> Any:
    if not isinstance(seconds, dict):
        return seconds
    return {EARLIER_NAMES.get(stage, stage): value for stage, value in seconds.items()}


Figure = Annotated[float | None, BeforeValidator(_none_unless_finite)]
"""A number that may be unknown. JSON has no NaN and no infinity: these become None."""
StageSeconds = Annotated[dict[str, float], BeforeValidator(_under_present_names)]
"""Seconds by stage."""


class Record(BaseModel):
    """A typed part of a run directory; unknown fields, which newer versions may write, are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
