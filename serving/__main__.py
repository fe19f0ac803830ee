"""`tandem` and `python -m serving`: ends in silence where Ctrl-C comes while the first imports are under way.

Rule: nothing of this project, nor any library, is imported at the top.
"""

try:
    import os
    import signal
except KeyboardInterrupt:  # these take 6 ms, before which no handler can be set
    raise SystemExit(130) from None


def main() -> None:
    """The `tandem` command."""
    is_ours = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # else whoever started it has Ctrl-C ignored
    if is_ours:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # nothing is there yet to be cleaned up
    from serving.cli import main as command

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
