"""Errors that a user can cause."""


class UserError(Exception):
    """A mistake in what the user gave: one sentence that names the file, line or option and says what to do.

    The command line prints it without a traceback and exits with status 2.
    """


class TooLongError(UserError):
    """A text that is longer than a whole batch may be."""


class JobError(Exception):
    """A job that was asked for correctly and still failed (full disk, diverged training): exit status 1."""
