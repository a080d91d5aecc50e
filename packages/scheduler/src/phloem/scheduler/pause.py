"""Ways to hold a scheduler still, so that weights may change under it."""

from __future__ import annotations

from enum import Enum


class PauseMode(Enum):
    """What becomes of the requests that are there when a scheduler is paused.

    Those that come later wait, and time limits go on to count, in every mode.
    """

    ABORT = "abort"
    """They end, those that wait too."""
    RETRACT = "retract"
    """Those that run give their memory back and wait, with their output: then they start over on
    whatever weights there are.
    """
    IN_PLACE = "in_place"
    """They stay where they are and go on later, over the KV that they have."""

    @classmethod
    def of(cls, name: str) -> PauseMode:
        """The mode of that name.

        Raises:
            ValueError: there is none, listing those that are.
        """
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(mode.value for mode in cls)
            raise ValueError(f"mode {name!r} is unknown: use one of {known}") from None
