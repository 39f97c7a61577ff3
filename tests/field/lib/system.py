"""Processes, ports and waits of the field suite. Linux only, standard library only."""
import ctypes
import os
import signal
import socket
import time

# How often a condition is tested while it is waited for.
POLL_S = 0.02
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


class Wrong(Exception):
    """The program, or `undying`, did something that a user would report as a bug."""


class Refused(Exception):
    """`undying` refused the program; the text is its own reason."""


class Unsupported(Exception):
    """This machine lacks something that the test needs."""


class TimeUp(Exception):
    """The time limit of the program has passed."""


def wait_for(condition, what, limit_s=30.0, poll_s=POLL_S):
    """Polls until the condition is true and returns its value; a failed connection counts as false."""
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
    """A TCP port of 127.0.0.1 that no socket is bound to at the moment, below the range of outgoing connections.

    A port from the kernel's own range could be taken by an outgoing connection while the program is dead.
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
    """A connection whose requests and answers are lines."""

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
    """Processes of this tree that lose their parent become our children, so that none escapes the cleaning up."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Unsupported("PR_SET_CHILD_SUBREAPER")


def own_shared_memory():
    """Gives this process and its children /dev/shm and System V objects of their own, which vanish with them.

    Killed programs leave such objects behind, with and without `undying`. Where this is forbidden, they stay.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWIPC) != 0:
        return
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0:
        libc.mount(b"field", b"/dev/shm", b"tmpfs", 0, b"mode=1777")


def parents():
    """The parent of each process: {pid: ppid}."""
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
    """Every process below `root`, parents before children."""
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
    """Whether the process exists and is no zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] != b"Z"
    except OSError:
        return False


def reap():
    """Collects dead children; returns {pid: wait status}."""
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
    """Kills every descendant by its pid and waits for it. Called by the process that runs one program."""
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
