"""Functions for processes, ports and waits. Works only on Linux, and needs only the standard library of Python."""
import ctypes
import os
import signal
import socket
import time

# Interval in which a wait tests its condition.
POLL_S = 0.02
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


class Wrong(Exception):
    """The program or `undying` did something that a user would report as a bug."""


class Refused(Exception):
    """`undying` refused the program. The text is the reason that `undying` gives."""


class Unsupported(Exception):
    """A requirement of the test is missing on this machine. The text names the requirement."""


class TimeUp(Exception):
    """The time limit of the program has passed."""


def wait_for(condition, what, limit_s=30.0, poll_s=POLL_S):
    """Polls a condition until its value is true, and returns the value. An OSError or EOFError counts as false.

    Raises Wrong, with the text `what`, if the condition is not true within `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            value = condition()
            if value:
                return value
        except (OSError, EOFError):
            pass
        if time.monotonic() > deadline:
            raise Wrong("%s: not within %g s" % (what, limit_s))
        time.sleep(poll_s)


def free_port():
    """Returns a port of 127.0.0.1 to which no TCP or UDP socket is bound.

    The port is below the default range of ephemeral ports. An outgoing connection could use a port of that range while
    the program is dead.
    """
    for _ in range(1000):
        port = 10000 + int.from_bytes(os.urandom(2), "big") % 20000
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp, \
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise Unsupported("a free port")


def connect(port, limit_s=10.0):
    connection = socket.create_connection(("127.0.0.1", port), timeout=limit_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Line:
    """A TCP connection on which requests and replies are lines of text."""

    def __init__(self, port):
        self.socket = connect(port)
        self.answers = self.socket.makefile("rb")

    def send(self, text):
        self.socket.sendall(text.encode())

    def read(self, size):
        found = self.answers.read(size)
        if len(found) < size:
            raise EOFError("the connection was closed")
        return found

    def line(self):
        line = self.answers.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the connection was closed")
        return line.rstrip(b"\r\n").decode(errors="replace")

    def ask(self, text):
        self.send(text + "\r\n")
        return self.line()

    def close(self):
        self.answers.close()
        self.socket.close()


def is_open(port):
    try:
        connect(port).close()
        return True
    except OSError:
        return False


def become_subreaper():
    """Makes this process a subreaper (prctl(2)): orphaned descendants become its children, so that it can kill them."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Unsupported("PR_SET_CHILD_SUBREAPER")


def own_shared_memory():
    """Moves this process to new mount and IPC namespaces, with an empty /dev/shm.

    Killed programs leave shared memory and other System V objects, with and without `undying`. The kernel removes these
    objects together with the namespaces. If new namespaces are not permitted, the objects remain.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWIPC) != 0:
        return
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0:
        libc.mount(b"field", b"/dev/shm", b"tmpfs", 0, b"mode=1777")


def parents():
    """Returns the parent of each process: {pid: ppid}."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    found[int(name)] = int(file.read().rsplit(b")", 1)[1].split()[1])
            except (OSError, IndexError):
                pass
    return found


def descendants(root):
    """Returns the pids of all descendants of `root`, parents before children."""
    children = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def is_alive(pid):
    """Returns whether the process exists and is not a zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] != b"Z"
    except OSError:
        return False


def reap():
    """Reaps ended children. Returns {pid: wait status}."""
    found = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found[pid] = status


def end_everything():
    """Kills and reaps all descendants of this process. Tries for at most 10 seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        below = descendants(os.getpid())
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        time.sleep(POLL_S)
