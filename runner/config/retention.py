"""The section ``retention`` of a profile, and the age in it."""

# Annotations are no text here: each command would compile and evaluate them again to check the profile.

from typing import Final, Literal

import msgspec

from runner.config.field_types import Age, Count

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an idle node does with old episodes; without ``older`` and ``max_bytes``, it keeps all.

    Attributes:
        max_bytes: size of the episode files, archives and traces above which the oldest episodes are pruned.
    """

    older: Age | None = None
    max_bytes: Count | None = None
    keep: Literal["tagged", "none"] = "tagged"
    archive: bool = True


def age_seconds(age: str) -> float:
    return float(int(age[:-1]) * _UNITS[age[-1]])
