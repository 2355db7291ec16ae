"""The exceptions a user can see. Each message says what happened, where, and what to do.

Anything else that escapes is a bug of ours and keeps its traceback.
"""

EXIT_STOPPED = 3
"""The exit code of a command that was stopped by a signal, after it saved what there was to save."""


class HeadraceError(Exception):
    """Base of every error that is not a bug of headrace; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(HeadraceError):
    """Wrong arguments or configuration: nothing was started."""

    exit_code = 2


class CorpusError(HeadraceError):
    """The text cannot be read as asked: missing, empty, malformed, truncated, or changed while being read."""


class NoTextColumnError(CorpusError):
    """A table has no column of the name that holds the text; in a folder, such a table is left out and counted."""


class TokenizerError(HeadraceError):
    """The tokenizer cannot be found, trained or used."""


class CacheError(HeadraceError):
    """The token cache is damaged, unfinished, foreign, or cannot be written."""


class TokenFileError(HeadraceError):
    """A token file of another project is damaged, of a kind that cannot be mapped, or changed while in use."""


class StateError(HeadraceError):
    """A saved loader state does not belong to this stream."""


class CheckpointError(HeadraceError):
    """A checkpoint is damaged, missing, of another model, or cannot be written."""


class WorkerError(HeadraceError):
    """A worker of the loader failed: no memory, no file, a transform that ended; the cause is its own exception."""


class TrainingError(HeadraceError):
    """Training cannot continue: the loss stays NaN, a process was lost, or the run directory is in use."""


class ReportError(HeadraceError):
    """A run directory cannot be reported on: missing, without metrics, damaged, or from a newer version."""


class MissingExtraError(UsageError):
    """A library that only one neighbour needs is not installed; the message has its pip line."""


class ChildError(HeadraceError):
    """A process that headrace started for a measurement failed, was killed, or took too long."""
