#!/usr/bin/env python3
"""Does a program lose more than its last checkpoint lacks when parts of `undying` are killed, or when system calls of a
restore fail?

The subject is steps.c, which checks in each step that its memory and its files are of the same moment. There are two
trials. Both print the seed of their random choices.

--kills N: own processes of `undying` are killed at random moments, alone and in pairs, and then the subject. An own
process is a child of the guardian that runs the program file of `undying`. In some rounds, one of the pair is the
guardian itself. These conditions must hold:

- The calls of the subject do not fail, whichever pair was killed.
- While the guardian lives, the subject is restored from the newest checkpoint that was committed before its death, or
  from a newer one. It never starts from its beginning.
- After the death of the guardian, `undying restore` restores the newest checkpoint, or refuses because files have
  changed while no process watched them.

--errnos N: one system call of the thread that restores the subject fails, with an errno that this call can give. N
points (call, errno) are drawn; 0 means all. The calls are found by tracing one restore with strace. The subject must
be restored from the newest committed checkpoint. Or the guardian ends with an error, and `undying restore` works. If
the call failed in each of the three attempts that the guardian makes, an older checkpoint is right.

Writes own_parts-TAG.txt. Exits with 1 if a condition did not hold.
"""
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time

from campaign import HERE, Findings, arguments, say_to

LIMIT_S = 30
# A restore is tried this often before a failure without a known reason counts as the fault of its checkpoint. strace
# counts the calls of each thread by itself, so each attempt fails once if each runs in another thread of the pool.
ATTEMPTS = 3
OLDER = " was usable"
# A line that ends the collection of a stream.
END = "END\n"
# The undo log grows until the first checkpoint is dropped, and a restore reads all of the log.
POINTS_OF_A_RUN = 20
# Calls that belong to no step of a restore, or that cannot fail.
# write(2) wakes the event loop through an eventfd. Neither this call nor getrlimit(2) can fail.
LEFT_OUT = {"write", "prlimit64", "futex", "brk", "sched_yield", "exit", "rt_sigprocmask", "clock_nanosleep", "nanosleep", "restart_syscall",
            "munmap", "sigaltstack", "set_robust_list", "rseq", "gettid", "getpid", "getuid", "geteuid", "getegid",
            "getgid", "madvise", "rt_sigaction", "close", "exit_group"}
ERRNOS = {
    "openat": ["EMFILE", "ENFILE", "ENOMEM", "EIO"], "open": ["EMFILE", "ENFILE"], "read": ["EIO", "ENOMEM"],
    "pread64": ["EIO", "ENOMEM"], "preadv": ["EIO"],
    "pwrite64": ["ENOSPC", "EDQUOT", "EIO"], "pwritev": ["ENOSPC", "EIO"], "clone3": ["EAGAIN", "ENOMEM"],
    "clone": ["EAGAIN", "ENOMEM"], "ptrace": ["ESRCH", "EIO"], "mkdirat": ["ENOSPC", "EDQUOT", "ENOMEM"],
    "mkdir": ["ENOSPC", "EDQUOT"], "renameat": ["ENOSPC", "ENOMEM"], "renameat2": ["ENOSPC", "ENOMEM"],
    "rename": ["ENOSPC", "ENOMEM"], "linkat": ["ENOSPC", "EDQUOT", "EMLINK"], "socketpair": ["EMFILE", "ENOBUFS"],
    "socket": ["EMFILE", "ENOBUFS"], "dup": ["EMFILE"], "dup3": ["EMFILE"], "fcntl": ["EMFILE", "EINVAL"],
    "mmap": ["ENOMEM"], "mprotect": ["ENOMEM"], "pidfd_open": ["EMFILE", "ENOMEM"], "sendmsg": ["EPIPE", "ENOBUFS"],
    "fallocate": ["ENOSPC", "EINTR"], "fdatasync": ["EIO", "ENOSPC"], "fsync": ["EIO", "ENOSPC"],
}
OTHERS = ["EINVAL", "ENOMEM", "EPERM"]


class Subject:
    """One run of `undying run` with the subject steps.c, and what both have written."""

    def __init__(self, options, scratch, number):
        self.folder = os.path.join(scratch, "round-%d" % number)
        self.store, self.work = os.path.join(self.folder, "store"), os.path.join(self.folder, "work")
        os.makedirs(self.work)
        self.command = [options.undying, "--store", self.store]
        # The subject inherits both streams. A FIFO can be opened again by a restore after the death of the guardian. A
        # pipe cannot, and a file would be rolled back.
        self.lines, self.told, self.readers = [], [], {}
        for name, lines in [("output", self.lines), ("messages", self.told)]:
            path = os.path.join(self.folder, name)
            os.mkfifo(path)
            # Open for reading and writing, so that the reader sees no end between two incarnations.
            self.readers[path] = open(os.open(path, os.O_RDWR), errors="replace")
            collect(self.readers[path], lines)
        words = ["run", "--name", "steps", "--every", "20ms", "--max-restarts", "100000/1m", "--files-cost-max", "1",
                 "--", os.path.join(scratch, "steps"), self.work]
        self.guardian = self.start(words)
        self.wait("the first checkpoint", lambda: self.newest() > 1)

    def start(self, words):
        """Starts `undying`, and collects its messages and the output of the subject."""
        output, messages = [os.open(path, os.O_WRONLY) for path in self.readers]
        try:
            return subprocess.Popen([*self.command, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=messages,
                                    text=True, errors="replace", start_new_session=True)
        finally:
            os.close(output)
            os.close(messages)

    def listed(self):
        said = say_to(self.command, "ls", "steps", "--json")
        return json.loads(said.stdout) if said.returncode == 0 else []

    def newest(self):
        """Returns the newest usable checkpoint, or 0: files can be rolled back to the checkpoint, and the guardian has
        reported that the checkpoint is durable. A restart drops a checkpoint that is still being written."""
        said = say_to(self.command, "events", "steps", "--json").stdout.splitlines()
        events = [json.loads(line) for line in said if '"event":"checkpoint"' in line]
        durable = max((event["seq"] for event in events), default=0)
        return max((row["seq"] for row in self.listed() if row["files_exact"] and row["seq"] <= durable), default=0)

    def pid(self):
        """Returns the pid of the subject, or None."""
        for pid in children(self.guardian.pid):
            if program(pid).endswith("/steps"):
                return pid
        return None

    def own_parts(self):
        own = program(self.guardian.pid)
        return [pid for pid in children(self.guardian.pid) if program(pid) == own]

    def steps(self):
        return sum(line.startswith("STEP") for line in self.lines)

    def progresses(self):
        """Waits until the subject has made further steps. Returns false if it makes none."""
        before = self.steps()
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if self.steps() > before + 2:
                return True
            if self.wrong():
                return False
            time.sleep(0.005)
        return False

    def wrong(self):
        """Returns what the subject has found wrong, or that it was started more than once."""
        found = [line for line in self.lines if line.startswith("WRONG")]
        if sum(line.startswith("START") for line in self.lines) > 1:
            found.append("the subject was started from its beginning")
        return found[0].strip() if found else None

    def restored(self):
        """Returns the checkpoints that the guardian has restored so far."""
        return [int(found[1]) for line in list(self.told) if (found := re.search(r"is back at checkpoint (\d+)", line))]

    def wait(self, what, condition):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.005)
        status = say_to(self.command, "status", "steps", "--json").stdout
        raise RuntimeError("no %s within %d s: %s\n%s" % (what, LIMIT_S, self.told[-3:], status))

    def die(self):
        """Kills the subject while its guardian lives. Returns the first condition that does not hold, or None."""
        pid, newest, count = self.pid(), self.newest(), len(self.restored())
        if pid is None:
            return None
        kill(pid)
        try:
            self.wait("restore", lambda: len(self.restored()) > count or self.guardian.poll() is not None)
        except RuntimeError as failure:
            return str(failure)
        if self.guardian.poll() is not None:
            return self.restore_by_hand(newest, "the guardian has ended with %s" % self.guardian.returncode)
        if not self.progresses():
            return self.wrong() or "no progress after a restore"
        if self.restored()[-1] < newest:
            return "checkpoint %d was restored, although %d%s" % (self.restored()[-1], newest, OLDER)
        return self.wrong()

    def restore_by_hand(self, newest, why, may_refuse=False):
        """Restores the subject after the death of its guardian. Returns the first condition that does not hold."""
        if max((row["seq"] for row in self.listed()), default=0) < newest:
            return "%s, and checkpoint %d is gone: %s" % (why, newest, self.told[-3:])
        restored = self.start(["restore", "steps", "--detach"])
        try:
            code = restored.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            restored.kill()
            return "%s, and restore hangs" % why
        if code == 3 and may_refuse:
            return None
        if code:
            return "%s, and restore ends with %d: %s" % (why, code, self.told[-4:])
        if not self.progresses():
            return "%s, and after restore: %s" % (why, self.wrong() or "no progress")
        return self.wrong()

    def end(self):
        pids = [int(line.split()[1]) for line in self.lines if line.startswith("START")]
        if self.guardian.poll() is None:
            self.guardian.kill()
        self.guardian.wait()
        for pid in pids:
            if program(pid).endswith("/steps"):
                kill(pid)
        for reader in self.readers.values():
            os.write(reader.fileno(), END.encode())
        shutil.rmtree(self.folder, ignore_errors=True)


def collect(stream, lines):
    """Appends the lines of a stream to a list, in a thread, up to the line END."""
    threading.Thread(target=lambda: lines.extend(iter(stream.readline, END)), daemon=True).start()


def children(pid):
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as listed:
                found += [int(word) for word in listed.read().split()]
    except OSError:
        pass
    return found


def program(pid):
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except OSError:
        return ""


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def kill_round(subject, draw):
    """Kills one or two own parts, and then the subject. Returns the first condition that does not hold, or None."""
    for _ in range(draw.choice([1, 1, 2, 3])):
        parts = subject.own_parts()
        draw.shuffle(parts)
        for pid in parts[:draw.choice([1, 2])]:
            kill(pid)
            time.sleep(draw.choice([0, 0, 0.001, draw.uniform(0, 0.01)]))
        if draw.random() < 0.3 and (pid := subject.pid()):
            # Parts are killed during the restore, too.
            newest = subject.newest()
            count = len(subject.restored())
            kill(pid)
            end = time.monotonic() + draw.choice([0.01, 0.03, 0.1])
            while time.monotonic() < end:
                for part in subject.own_parts():
                    if draw.random() < 0.05:
                        kill(part)
                time.sleep(0.001)
            subject.wait("restore", lambda: len(subject.restored()) > count or subject.guardian.poll() is not None)
            if subject.guardian.poll() is None and subject.restored()[-1] < newest:
                return "checkpoint %d was restored, although %d was usable" % (subject.restored()[-1], newest)
        if not subject.progresses():
            return subject.wrong() or "no progress after parts were killed"
    if draw.random() < 0.6:
        return subject.die()
    # The guardian dies, alone or with an own part. The subject must continue, and can be restored afterwards.
    newest, pid, pair = subject.newest(), subject.pid(), [subject.guardian.pid]
    subject.wait("two holders", lambda: len(subject.own_parts()) >= 2)
    time.sleep(0.02)
    pair += draw.sample(subject.own_parts(), 1) if draw.random() < 0.7 else []
    draw.shuffle(pair)
    is_with_subject = draw.random() < 0.5
    for one in pair + ([pid] if is_with_subject else []):
        kill(one)
    subject.guardian.wait()
    if not is_with_subject:
        if not subject.progresses():
            return "after the guardian died: %s" % (subject.wrong() or "no progress")
        kill(pid)
    time.sleep(0.05)
    return subject.restore_by_hand(newest, "the guardian was killed", may_refuse=True)


def kills(options, findings, scratch):
    counts, wrong = collections.Counter(), 0
    for number in range(options.kills):
        seed = "%d-%d" % (options.seed, number)
        subject = Subject(options, scratch, number)
        try:
            failed = kill_round(subject, random.Random(seed))
        except RuntimeError as failure:
            failed = str(failure)
        counts["held" if failed is None else "did not hold"] += 1
        if failed is not None:
            wrong += 1
            findings.say("round %s: %s\n  %s" % (seed, failed, "  ".join(subject.told[-20:])))
        subject.end()
    findings.say("%d rounds with killed parts: %s" % (options.kills, dict(counts)))
    return wrong == 0


class Traced:
    """strace on the threads of the guardian that restore the subject."""

    def __init__(self, subject, words):
        tasks = "/proc/%d/task" % subject.guardian.pid
        self.log = os.path.join(subject.folder, "strace")
        names = {tid: open(os.path.join(tasks, tid, "comm")).read().strip() for tid in os.listdir(tasks)}
        pids = [word for tid, name in names.items() if name == "undying-work" for word in ("-p", tid)]
        self.process = subprocess.Popen(["strace", "-qq", "-o", self.log, *words, *pids], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        tids = pids[1::2]
        # If a thread ends before strace attaches, strace ends. The point is then made without a failure.
        subject.wait("strace", lambda: self.process.poll() is not None
                     or all(is_traced(subject.guardian.pid, tid) for tid in tids))

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        with open(self.log, errors="replace") as log:
            return log.read()


def calls_in(log):
    return re.findall(r"^(?:\d+ +)?(\w+)\(", log, re.MULTILINE)


def is_traced(pid, tid):
    try:
        with open("/proc/%d/task/%s/status" % (pid, tid)) as status:
            return "TracerPid:\t0" not in status.read()
    except OSError:
        return True


def errnos(options, findings, scratch):
    draw = random.Random(options.seed)
    subject, number, wrong = Subject(options, scratch, 0), 0, 0
    calls, failed = collections.Counter(), None
    # The guardian may start another thread for the restore, which is not traced.
    while not failed and not calls["clone3"]:
        traced = Traced(subject, [])
        failed = subject.die()
        calls = collections.Counter(calls_in(traced.end()))
    points = [(call, nth, errno) for call, count in sorted(calls.items())
              if call not in LEFT_OUT and options.call in (None, call) for nth in range(1, count + 1) for errno in ERRNOS.get(call, OTHERS)]
    findings.say("a restore makes %d calls of %d kinds; %d points" % (sum(calls.values()), len(calls), len(points)))
    if options.errnos and options.errnos < len(points):
        points = draw.sample(points, options.errnos)
    outcomes = collections.Counter()
    for index, (call, nth, errno) in enumerate(points, 1):
        if subject.guardian.poll() is not None or failed or index % POINTS_OF_A_RUN == 0:
            subject.end()
            number += 1
            subject = Subject(options, scratch, number)
        # A restore needs a checkpoint of the present incarnation, so that restarts do not back off.
        newest = subject.newest()
        subject.wait("checkpoint", lambda: subject.newest() > newest)
        traced = Traced(subject, ["-e", "trace=" + call, "-e", "inject=%s:error=%s:when=%d" % (call, errno, nth)])
        failed = subject.die()
        if traced.end().count("(INJECTED)") >= ATTEMPTS and failed and failed.endswith(OLDER):
            outcomes["every attempt failed, restored from an older checkpoint"] += 1
            continue
        ended = subject.guardian.poll() is not None
        outcomes["did not hold" if failed else "ended, restored by hand" if ended else "restored"] += 1
        if failed:
            wrong += 1
            findings.say("call %s number %d with %s: %s\n  %s" % (call, nth, errno, failed, "  ".join(subject.told[-20:])))
    subject.end()
    findings.say("%d failed calls: %s" % (len(points), dict(outcomes)))
    return wrong == 0


def main():
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=500, help="rounds with killed parts (default: 500)")
    parser.add_argument("--errnos", type=int, default=0, help="points with a failed call; 0 means all (default: 0)")
    parser.add_argument("--call", help="let only this system call fail (default: all)")
    parser.add_argument("--only", choices=["kills", "errnos"], help="one trial instead of both")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    findings = Findings("own_parts", options)

    def work(scratch):
        findings.say("seed %d" % options.seed)
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-o", os.path.join(scratch, "steps"),
                        os.path.join(HERE, "steps.c")], check=True)
        held = options.only == "errnos" or kills(options, findings, scratch)
        return (options.only == "kills" or errnos(options, findings, scratch)) and held

    findings.run(work)


if __name__ == "__main__":
    main()
