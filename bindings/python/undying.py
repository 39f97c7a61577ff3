"""Requests of a program to its guardian: the process of `undying run` or `undying up` that checkpoints and restarts it.

    import undying

    if undying.is_guarded():
        undying.ready()                 # with `undying run --await-ready`: periodic checkpoints begin
        number = undying.checkpoint()   # returns when the checkpoint is durable
        with undying.hold():            # no checkpoint is taken in this block
            ...

    before = undying.generation()
    ...
    if undying.generation() != before:  # the program was restored in between, perhaps a second time from one checkpoint
        random.seed()

A request is repeated once a second until its reply arrives. Therefore, a request can succeed even if the program is
restored or gets a new guardian in the meantime. If the guardian no longer exists, a request raises
ConnectionRefusedError.
"""

import contextlib
import mmap
import os
import socket
import sys

__all__ = ["NotGuarded", "Refused", "checkpoint", "generation", "hold", "is_guarded", "ready"]

_VARIABLE = "UNDYING_SOCKET"
_PATIENCE_S = 1.0
_GENERATION_BYTES = 24
_generation = None


class NotGuarded(RuntimeError):
    """The program has no guardian, so it cannot make requests."""


class Refused(RuntimeError):
    """The checkpoint was refused or has failed. The message contains the reason."""


def is_guarded():
    """Reports whether this program has a guardian. Makes no request."""
    return os.environ.get(_VARIABLE, "").startswith("@")


def checkpoint():
    """Requests a checkpoint, and returns its sequence number when the checkpoint is durable.

    From then on, no death of a process takes the program back to an earlier state. After a restore from this
    checkpoint, the program waits in this call again. The call then repeats its request, and returns a second time,
    with the number of a later checkpoint.
    """
    return int(_ask("checkpoint"))


def ready():
    """Reports that the initialisation is complete. With `undying run --await-ready`, periodic checkpoints begin now."""
    _ask("ready")


@contextlib.contextmanager
def hold():
    """Returns a context manager. In its `with` block, no checkpoint is taken.

    A hold belongs to the process, and not to a thread. Holds do not nest. A hold ends after one minute at the latest.
    """
    _ask("hold")
    try:
        yield
    finally:
        _ask("release")


def generation():
    """Returns a number that each restore of this program increments. Needs no guardian, and makes no request.

    The first call creates a memory file, which `undying` recognises by its name. Each call reads one word of memory.
    """
    global _generation
    if _generation is None:
        own = os.memfd_create("undying-generation")
        os.ftruncate(own, _GENERATION_BYTES)
        _generation = mmap.mmap(own, _GENERATION_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(own)
    return int.from_bytes(_generation[:8], sys.byteorder)


def _ask(word):
    if not is_guarded():
        raise NotGuarded("UNDYING_SOCKET names no guardian; start the program with `undying run`")
    guardian = "\0" + os.environ[_VARIABLE][1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind("")  # the kernel assigns an address; the guardian sends the reply to it
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
