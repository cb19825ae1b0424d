"""Every error that cloison raises, in one tree.

::

    CloisonError
    ├── InputError (ValueError)          an argument or an array that cannot be right
    │   ├── BoundaryError                boundaries that are malformed, or that two sources state differently
    │   ├── SpecError                    a PackSpec field that is unknown or out of range
    │   └── OverlongError                samples longer than the capacity, and no word on what to do with them
    ├── RecordError (ValueError)         a record of the source that cannot be read or recognised
    │   ├── TemplateError                a chat template that fails, or that escapes its sandbox or limits
    │   └── SpanError                    a message whose trained span cannot be found in the rendering
    ├── StoreError (OSError)             files on disk that are missing, damaged, or not as recorded
    │   ├── ManifestError                no manifest, or one that does not describe what is there
    │   └── ChangedError                 an input or a data set that changed since it was recorded
    ├── FindingsError                    verify, audit or check found something (raise_for_findings)
    ├── NotExactError                    no way to run this model on packed blocks exactly
    └── MissingDependencyError (ImportError)   an extra that is not installed

A message has three parts, which are also fields: what was ``asked``, what was ``found``, and what to do (``remedy``).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

__all__ = [
    "BoundaryError",
    "ChangedError",
    "CloisonError",
    "FindingsError",
    "InputError",
    "ManifestError",
    "MissingDependencyError",
    "NotExactError",
    "OverlongError",
    "RecordError",
    "SpanError",
    "SpecError",
    "StoreError",
    "TemplateError",
    "require",
]


class CloisonError(Exception):
    """The root of the tree; ``str()`` joins the three parts with a space.

    ``samples`` are the indices of samples that it names, the first ones; empty where it speaks of none.
    """

    def __init__(self, asked: str, found: str = "", remedy: str = "", *, samples: Sequence[int] = ()) -> None:
        self.asked = asked
        self.found = found
        self.remedy = remedy
        self.samples = tuple(samples)
        super().__init__(asked, found, remedy)

    def __str__(self) -> str:
        return " ".join(part for part in (self.asked, self.found, self.remedy) if part)


class InputError(CloisonError, ValueError):
    """An argument or an array that cannot be right."""


class BoundaryError(InputError):
    """Boundaries that are malformed, or that two sources state differently."""


class SpecError(InputError):
    """A field of a PackSpec that is unknown or out of range."""


class OverlongError(InputError):
    """Samples longer than the capacity, and no word on what to do with them."""


class RecordError(CloisonError, ValueError):
    """A record of the source that cannot be read or recognised."""


class TemplateError(RecordError):
    """A chat template that fails, or that tries to leave its sandbox or its limits."""


class SpanError(RecordError):
    """A message whose trained span cannot be found in the rendering."""


class StoreError(CloisonError, OSError):
    """Files on disk that are missing, damaged, or not as recorded."""


class ManifestError(StoreError):
    """There is no manifest, or it does not describe what is there."""


class ChangedError(StoreError):
    """An input or a data set that changed since it was recorded."""


class FindingsError(CloisonError):
    """verify, audit or check found something, and the caller asked that this raise."""


class NotExactError(CloisonError):
    """There is no way to run this model on packed blocks exactly."""


class MissingDependencyError(CloisonError, ImportError):
    """A package of an extra that is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Return the imported ``module``, or raise a MissingDependencyError with the line that installs it.

    Only a missing ``module`` itself counts as missing: an ImportError from inside an installed package passes through.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingDependencyError(
            f"this needs {module.split('.')[0]}, which comes with the extra {extra!r}.",
            "It is not installed.",
            f"Run: pip install 'cloison[{extra}]'",
        ) from error
