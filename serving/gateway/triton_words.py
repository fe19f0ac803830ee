"""Puts Triton's wording before ours in errors, for clients that decide by the text. Off unless the setting `triton_words` is on.

The wording is chosen by our classes of errors, never copied from a Triton. Rule: status, headers and our sentence stay as they are.
"""

from __future__ import annotations

from serving import errors

SERVER_NAME = "triton"  # of server metadata
# class -> the words, with the error's own fields; subclasses have those of the class above them.
WORDS: dict[type[errors.RequestError], str] = {
    errors.NoSuchModel: "Request for unknown model: '{model}' is not found",
    errors.NoSuchVersion: "Request for unknown model: '{model}' version {version} is not found",
    errors.NothingToLoad: "failed to load '{model}', failed to poll from model repository",
    errors.LoadRefused: "failed to load '{model}'",
    errors.Overloaded: "Exceeds maximum queue size",
    errors.DeadlineExpired: "Request timeout expired",
}


def worded(error: errors.RequestError) -> errors.RequestError:
    """The same error, whose message begins with Triton's words where it has any."""
    words = next((WORDS[kind] for kind in type(error).__mro__ if kind in WORDS), None)
    if words is not None:
        said = words.format_map(vars(error))
        if not str(error).startswith(said):
            error.args = (f"{said}; {error}",)
    return error
