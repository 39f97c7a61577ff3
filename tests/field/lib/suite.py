"""Runs programs, each in a process of its own that cleans up after itself, and gathers one row a trial."""
import importlib.util
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback

from . import trials
from .program import Program
from .system import Refused, TimeUp, Unsupported, Wrong, become_subreaper, end_everything, own_shared_memory
from .undying import Undying

PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "programs")
TRIALS = ("one-shot", "run")
# After the time limit of a program: for the killing of its processes and the removal of its folder.
GRACE_S = 30
PR_SET_PDEATHSIG = 1


def programs():
    """Every class with a name in `programs/`, by name."""
    found = {}
    for file in sorted(os.listdir(PROGRAMS)):
        if not file.endswith(".py"):
            continue
        spec = importlib.util.spec_from_file_location("programs_" + file[:-3], os.path.join(PROGRAMS, file))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Program) and kind.__module__ == module.__name__ and kind.name:
                found[kind.name] = kind
    return found


def missing_packages(kinds):
    """The Debian packages of commands that are not there."""
    missing = []
    for kind in kinds:
        missing += [package for command, package in kind.needs.items() if not has(command)]
        missing += [package for package in kind.extra_packages if not is_installed(package)]
    return sorted(set(missing))


def has(command):
    return shutil.which(command) is not None or os.access(command, os.X_OK)


def is_installed(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True)
    return done.stdout.endswith(" installed")


def install(packages):
    """Installs packages by apt-get, one by one where all together fail."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    words = ["apt-get", "install", "-qq", "-y", "--no-install-recommends"]
    quiet = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    subprocess.run(["apt-get", "update", "-qq"], **quiet)
    if subprocess.run([*words, *packages], **quiet).returncode != 0:
        for package in packages:
            subprocess.run([*words, package], **quiet)


def lacks(kind):
    """What the machine lacks for a program; None if nothing."""
    if os.geteuid() != 0:
        return "root"
    missing = missing_packages([kind])
    return "package " + ", ".join(missing) if missing else None


class Options:
    """What holds for all programs: the binary, the seed, the number of kills, whether folders of failures are kept."""

    def __init__(self, undying, seed, kills=3, keep=False, trials=TRIALS):
        self.undying, self.seed, self.kills, self.keep, self.trials = undying, seed, kills, keep, trials


def rows_of(kind, options):
    """The rows of one program."""
    lacking = lacks(kind)
    for trial in options.trials:
        row = {"program": kind.name, "group": kind.group, "trial": trial, "version": "", "seed": options.seed,
               "verdict": "unsupported", "reason": lacking or "", "restored": 0, "fresh": 0, "acknowledged": 0, "seconds": 0.0}
        if not lacking:
            begin = time.monotonic()
            row.update(in_own_process(kind.limit_s, lambda *place: try_out(kind, trial, options, *place), options.keep))
            row["seconds"] = round(time.monotonic() - begin, 1)
        yield row


def in_own_process(limit_s, work, keep=False):
    """Runs `work(folder, row)` in a child, which is the subreaper of all that it starts; gives the row that it filled in.

    The verdict is `works` unless `work` raises or says otherwise. With `keep` the folder of a broken one stays.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            found = guarded(limit_s, work, keep)
            with os.fdopen(writer, "wb") as answer:
                answer.write(json.dumps(found).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as answer:
            said = answer.read()
    except BaseException:
        os.kill(child, signal.SIGTERM)
        raise
    finally:
        os.waitpid(child, 0)
    return json.loads(said) if said else {"verdict": "broken", "reason": "the process of the trial died"}


def guarded(limit_s, work, keep):
    """The verdict of `work`; its processes and its folder are gone afterwards."""
    become_subreaper()
    own_shared_memory()
    end_with_parent()
    os.umask(0o022)
    signal.signal(signal.SIGALRM, raise_time_up)
    signal.signal(signal.SIGTERM, raise_time_up)
    signal.alarm(limit_s)
    folder, found = tempfile.mkdtemp(prefix="undying-field-"), {"verdict": "broken", "reason": "interrupted"}
    os.chmod(folder, 0o711)
    try:
        found = judged(limit_s, work, folder)
    finally:
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        end_everything()
        if keep and found["verdict"] == "broken":
            print("kept: %s" % folder, file=sys.stderr)
        else:
            remove(folder)
    return found


def try_out(kind, trial, options, folder, row):
    """One trial of a program, whose row it fills in."""
    place, own = os.path.join(folder, "p"), os.path.join(folder, "undying")
    os.mkdir(place)
    os.mkdir(own, 0o700)
    draw = random.Random("%s %s %s" % (options.seed, kind.name, trial))
    program, undying = kind(place, draw), Undying(options.undying, own)
    program.give(place)
    row["version"] = program.version()
    program.prepare()
    if trial == "run":
        outcome = trials.run(program, undying, options.kills)
    else:
        outcome = trials.one_shot(program, undying)
    row.update(restored=outcome.restored, fresh=outcome.fresh, reason=outcome.fresh_reason,
               acknowledged=len(getattr(program, "acknowledged", ())))


def judged(limit_s, work, folder):
    """The row that `work` fills in, with the verdict and the reason of what it raises."""
    found = {"verdict": "works", "reason": ""}
    try:
        work(folder, found)
    except Refused as refusal:
        found.update(verdict="refused", reason=str(refusal))
    except Unsupported as lacking:
        found.update(verdict="unsupported", reason=str(lacking))
    except Wrong as failure:
        found.update(verdict="broken", reason=str(failure))
    except TimeUp:
        place = "".join(traceback.format_exc().splitlines()[-3:-1])
        found.update(verdict="broken", reason="not done within %d s: %s" % (limit_s, place))
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as failure:  # A failure of the suite itself counts as broken, with its place.
        place = traceback.extract_tb(failure.__traceback__)[-1]
        where = "%s:%d" % (os.path.basename(place.filename), place.lineno)
        found.update(verdict="broken", reason="%r at %s" % (failure, where))
    found["reason"] = found["reason"].replace(os.path.join(folder, "p") + os.sep, "")
    return found


def raise_time_up(_number, _frame):
    raise TimeUp


def end_with_parent():
    """When the suite is killed, the process of a trial receives SIGTERM and cleans up."""
    import ctypes
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def remove(folder):
    """Removes a folder with all that programs left in it."""
    for place, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
