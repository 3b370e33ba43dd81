"""`PatchReport`: what `patch` changed in a model, what it did not change, and what it compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class PatchedModule(NamedTuple):
    """One line of a report: a kind of module, how many, and what was done or why not."""

    name: str
    kind: str
    how_many: int
    what: str


@dataclass(frozen=True)
class PatchReport:
    """What `patch` changed in a model, what it did not change, and which inputs were compared.

    Attributes:
        asked: The inputs with the same outputs before and after.
        unasked: The inputs and uses that could not be compared, each with the reason.
    """

    model: str
    impl: str
    changed: tuple[PatchedModule, ...]
    left_alone: tuple[PatchedModule, ...]
    asked: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def checked(self) -> bool:
        """Whether the outputs are the same as before for every kind of input that the model takes."""
        return bool(self.asked) and not self.unasked

    def __str__(self) -> str:
        asked = ", ".join(self.asked)
        seen = f"answers as before ({asked})" if self.checked else f"as before with {asked}"
        lines = [f"{self.model}, patched (impl={self.impl!r}), {seen if asked else 'not checked'}"]
        for title, entries in (("changed", self.changed), ("left alone", self.left_alone)):
            for entry in entries:
                count = f" × {entry.how_many}" if entry.how_many > 1 else ""
                lines.append(f"  {title:<10}  {entry.kind}{count} ({entry.name}): {entry.what}")
        return "\n".join([*lines, *(f"  unchecked   {what}" for what in self.unasked)])

    __repr__ = __str__
