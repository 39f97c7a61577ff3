"""Runs each trial in a separate process, which removes its files and processes at the end. Returns a row per trial."""
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
PR_SET_PDEATHSIG = 1


def programs():
    """Returns the classes of all programs in `programs/`: {name: class}."""
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
    """Returns the missing Debian packages of these programs."""
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
    """Installs packages by apt-get. If the installation of all packages fails, installs them one by one."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    words = ["apt-get", "install", "-qq", "-y", "--no-install-recommends"]
    quiet = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    subprocess.run(["apt-get", "update", "-qq"], **quiet)
    if subprocess.run([*words, *packages], **quiet).returncode != 0:
        for package in packages:
            subprocess.run([*words, package], **quiet)


def lacks(kind):
    """Returns the missing requirement of a program, as text, or None."""
    if os.geteuid() != 0:
        return "root"
    missing = missing_packages([kind])
    return "package " + ", ".join(missing) if missing else None


class Options:
    """The settings that are the same for all programs. With `keep`, directories of broken programs are kept."""

    def __init__(self, undying, seed, kills=3, keep=False, trials=TRIALS):
        self.undying, self.seed, self.kills, self.keep, self.trials = undying, seed, kills, keep, trials


def rows_of(kind, options):
    """Runs the trials of one program, and yields a row for each trial."""
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
    """Runs `work(folder, row)` in a child process, which is the subreaper of its descendants. Returns the row.

    The verdict is `works`, unless `work` raises an exception or sets another verdict. With `keep`, the directory of a
    broken trial is kept.
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
    """Calls `work` in a new directory, and returns the row. Then kills all descendants and removes the directory."""
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
    """Runs one trial of a program, and fills in its row."""
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
    """Calls `work`, and returns its row. An exception of `work` determines the verdict and the reason."""
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
    except Exception as failure:  # An error of the suite itself. The reason contains its line.
        place = traceback.extract_tb(failure.__traceback__)[-1]
        where = "%s:%d" % (os.path.basename(place.filename), place.lineno)
        found.update(verdict="broken", reason="%r at %s" % (failure, where))
    found["reason"] = found["reason"].replace(os.path.join(folder, "p") + os.sep, "")
    return found


def raise_time_up(_number, _frame):
    raise TimeUp


def end_with_parent():
    """Makes the kernel send SIGTERM to this process when its parent ends. Its processes and files are then removed."""
    import ctypes
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def remove(folder):
    """Removes a directory with all its content. First makes all directories below it writable."""
    for place, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
