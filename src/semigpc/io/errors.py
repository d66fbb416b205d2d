"""Every error that semigpc raises on purpose: one family, so that callers can catch it whole.

A message is one paragraph: what is wrong, the value, and what to do.
"""


class SemiGPCError(Exception):
    """The base of all errors below."""


class DataError(SemiGPCError, ValueError):
    """A problem in the data that their owner can fix.

    It is built from one string, so that a loader's worker process can send it to the main one.
    """


class ImageError(DataError):
    """An image that cannot be read; the message contains its path."""


class FileError(DataError):
    """A file written by this package that cannot be used; the message names it and the problem."""


class SettingsError(SemiGPCError, ValueError):
    """A setting that does not exist or cannot have this value."""


class NotExportableError(SettingsError):
    """A network that cannot be exported in this format; the message says why."""


class RunError(SemiGPCError, RuntimeError):
    """A run that cannot continue as requested; the message says how it can."""


class CheckpointError(RunError):
    """A checkpoint that cannot be read; the message says why, and which other one can be."""


class ProcessesError(RunError):
    """Processes that were started differently, or one that has ended; the message names it."""


class DifferenceError(RunError):
    """The exported file does not return what the run returns."""


class HubError(RunError):
    """Weights that could not be downloaded; the message says what to do without a network."""


class InUseError(RunError):
    """Another process, named in the message, is writing there."""


class DivergedError(SemiGPCError, RuntimeError):
    """Losses or predictions contain NaN or infinity."""


class WriteError(SemiGPCError, OSError):
    """A file that could not be written; the previous one was not modified.

    Args:
        message: names the path and the remedy.
        passing: whether the same call may succeed later, once there is space or a permission.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing
