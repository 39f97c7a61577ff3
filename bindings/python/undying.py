"""What a program may ask of the `undying` that guards it.

    import undying

    if undying.is_guarded():
        undying.ready()                 # with `undying run --await-ready`: checkpoints begin
        number = undying.checkpoint()   # returns when it is durable
        with undying.hold():            # no checkpoint is taken in here
            ...

Every request is made again once a second until it is answered, so that it outlives a restore and a new guardian.
"""

import contextlib
import os
import socket

__all__ = ["NotGuarded", "Refused", "checkpoint", "hold", "is_guarded", "ready"]

_VARIABLE = "UNDYING_SOCKET"
_PATIENCE_S = 1.0


class NotGuarded(RuntimeError):
    """The program does not run under `undying run`."""


class Refused(RuntimeError):
    """The checkpoint was refused or failed; the message says why."""


def is_guarded():
    """Whether somebody guards this program."""
    return os.environ.get(_VARIABLE, "").startswith("@")


def checkpoint():
    """Takes a checkpoint now, and returns its number when it is durable.

    Whatever dies from then on, the program comes back no older than this. After a restore from it, this call returns
    a second time.
    """
    return int(_ask("checkpoint"))


def ready():
    """Initialisation is over: with `undying run --await-ready`, checkpoints by the clock begin."""
    _ask("ready")


@contextlib.contextmanager
def hold():
    """No checkpoint is taken inside. One for a process, not for each of its threads; ends after a minute in any case."""
    _ask("hold")
    try:
        yield
    finally:
        _ask("release")


def _ask(word):
    if not is_guarded():
        raise NotGuarded("UNDYING_SOCKET is not set: not started by `undying run`")
    guardian = "\0" + os.environ[_VARIABLE][1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind("")  # the kernel gives a name, to which the answer comes
        own.settimeout(_PATIENCE_S)
        while True:
            own.sendto(word.encode(), guardian)
            try:
                answer = own.recv(256).decode().strip()
            except TimeoutError:
                continue
            verdict, _, rest = answer.partition(" ")
            if verdict == "ok":
                return rest
            raise Refused(rest)
