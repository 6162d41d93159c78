"""The one error type of the package."""

from __future__ import annotations

CODES = (
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


class PathwaysError(RuntimeError):
    """An error of Open Pathways.

    `code` is the name of an absl/PJRT status code, such as ``INVALID_ARGUMENT``, as in the messages of JAX's own
    errors. `message` says what was wrong, what was expected and what to do. ``str(error)`` contains both.
    """

    def __init__(self, code: str, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    def __reduce__(self):
        return PathwaysError, (self.code, self.message)

    @classmethod
    def parse(cls, text: str) -> PathwaysError:
        """Makes an error from the library's text, ``CODE: message``; without a known code, its code is UNKNOWN."""
        code, colon, message = text.partition(": ")
        return cls(code, message) if colon and code in CODES else cls("UNKNOWN", text)


def invalid_argument(message: str) -> PathwaysError:
    return PathwaysError("INVALID_ARGUMENT", message)


def failed_precondition(message: str) -> PathwaysError:
    return PathwaysError("FAILED_PRECONDITION", message)


def not_found(message: str) -> PathwaysError:
    return PathwaysError("NOT_FOUND", message)


def unimplemented(message: str) -> PathwaysError:
    return PathwaysError("UNIMPLEMENTED", message)
