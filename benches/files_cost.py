#!/usr/bin/env python3
"""What is the cost of rolling back the files of a program to the checkpoint of its memory?

Each program runs without undying (`bare`), and under `undying run` with each policy of `--files` that --policies names.
The default policies are keep and rewind. The other policies are compared with the first one. A checkpoint is taken
every 100 ms or every second. The runs of a round follow each other, with a bare run first and last. Every second round
has the reverse order. Each run has new files. tar is the first program, and its files are removed at the very end. The
reason is that ext4 creates files slowly after thousands of files were removed. Do not remove many files before a run.

  tar       `tar --extract` of 40,000 files of 500 to 4,000 bytes
  cpu       a computation that writes no file
  make      make -j2 of a generated C project of 100 files
  redis     a server with an append-only file (fsync every second), with load from redis-benchmark
  wal       a bulk load into an SQLite database of 66 MB, journal_mode=WAL, synchronous=NORMAL
  delete    the same, with a rollback journal that is deleted after each transaction
  wal-full  the same as wal, synchronous=FULL: fdatasync(2) after each transaction
  redis-always
            the same as redis, but with fdatasync(2) before each reply
  postgresql
            a server with its own data directory; pgbench runs 2,000 transactions on each of 2 connections
  mariadb   a server with its own data directory; mariadb-slap inserts 10,000 rows, and then updates rows by key, 4,000
            times on each of 4 connections

Each row is one run:

  wall_s        wall time of the whole command. For a server, wall time of its client.
  by_bare       wall_s, divided by the mean of the two bare runs of the round. For the last bare run of a round, divided
                by the first one. This is the noise.
  by_first      wall_s, divided by that of the run with the first policy, in the same round and with the same interval
  cpu_s         processor time of the program and of `undying`, as far as their processes were reaped
  cpu_by_bare   cpu_s divided like by_bare. On a busy machine, it varies less than by_bare.
  cpu_by_first  cpu_s divided like by_first
  store_mib     size of the store at the end

`checkpoints`, `refused`, `pause_us_p50` and `pause_us_p99` are values of `undying status`.

Files and stores are in --place. --place should be on a disk, because tmpfs does not report changes of files.
"""
import glob
import io
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time

from lib.harness import (PROGRAMS, Rows, main, middle, on, plotter, read_rows, redis_answers, results, save, spread,
                         wait_for)

QUESTION = "files_cost"
POLICIES = "keep,rewind"
COLUMNS = ["program", "every_ms", "files", "round", "wall_s", "by_bare", "by_first", "cpu_s", "cpu_by_bare",
           "cpu_by_first", "checkpoints", "refused", "pause_us_p50", "pause_us_p99", "store_mib"]
# The goals of the design: wall time with `rewind`, divided by that with `keep`, for each interval in ms.
GOALS = {"cpu": {100: 1.0, 1000: 1.0}, "make": {100: 1.03, 1000: 1.03}, "redis": {100: 1.03, 1000: 1.03},
         "wal": {1000: 1.10}, "delete": {1000: 1.10}, "mariadb": {1000: 1.10}, "tar": {100: 1.30, 1000: 1.30}}
LIMIT_S = 600
# The folder of the newest installed PostgreSQL.
POSTGRESQL = max(glob.glob("/usr/lib/postgresql/*/bin"), default="/usr/lib/postgresql/bin")
# Prefix of each command. Output to a file of the bench would count as a file of the program. Output to a pipe of the
# bench would be an obstacle to checkpoints.
SILENT = ["sh", "-c", 'exec "$@" >/dev/null 2>&1', "sh"]


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def quietly(*words, **more):
    """Runs a tool of the bench, and returns its output. If the tool fails, the error contains the output."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, **more)
    if done.returncode != 0:
        raise RuntimeError("%s ended with status %d:\n%s%s" % (words, done.returncode, done.stdout, done.stderr))
    return done.stdout


# Programs -----------------------------------------------------------------------------------------------------------

class Job:
    """A program that does its work and ends. Its files are in a separate folder for each run."""

    needs = ()

    def __init__(self, options, shared):
        """Creates a job. `shared` is a folder for input files of all runs."""
        self.quick, self.shared = options.quick, shared

    def prepare(self, folder):
        """Creates the input files of one run."""

    def check(self, folder):
        """Raises an error if the result is wrong."""

    def load(self):
        """Sends the requests of one run to a running server. Only for servers."""


class Cpu(Job):
    SCRIPT = "import sys\ns = 0\nfor i in range(int(sys.argv[1])):\n    s = (s * 31 + i) % 1000003\nassert s\n"

    def words(self, folder):
        return [sys.executable, "-c", self.SCRIPT, str(20000000 if self.quick else 60000000)]


class Make(Job):
    needs = ("make", "cc")
    FUNCTION = ("int f%d_%d(int *a, int n) { int s = %d; for (int i = 0; i < n; i++) { s += a[i] * %d; if (s & %d) "
                "s ^= a[i / 2]; else a[i] = s %% 97; } return s; }\n")

    def __init__(self, options, shared):
        super().__init__(options, shared)
        self.files = 30 if self.quick else 100

    def prepare(self, folder):
        for file in range(self.files):
            with open(os.path.join(folder, "f%d.c" % file), "w") as source:
                source.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
                source.writelines(self.FUNCTION % (file, k, k, k + 1, k + 3) for k in range(40))
        with open(os.path.join(folder, "main.c"), "w") as source:
            source.write("int f0_0(int *, int);\nint main(void) { int a[1] = {0}; return f0_0(a, 1); }\n")
        objects = " ".join(["main.o", *("f%d.o" % file for file in range(self.files))])
        with open(os.path.join(folder, "Makefile"), "w") as makefile:
            makefile.write("prog: %s\n\tcc -o $@ $^\n%%.o: %%.c\n\tcc -O1 -c -o $@ $<\n" % objects)

    def words(self, folder):
        return ["make", "--silent", "-j2"]

    def check(self, folder):
        quietly(os.path.join(folder, "prog"))


class Sqlite(Job):
    synchronous = "NORMAL"

    def __init__(self, options, shared):
        super().__init__(options, shared)
        self.first = os.path.join(shared, "first.db")
        if not os.path.exists(self.first):
            source = random.Random(2)
            connection = sqlite3.connect(self.first)
            connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, text BLOB)")
            rows = ((source.randbytes(300),) for _ in range(200000))
            connection.executemany("INSERT INTO item(text) VALUES (?)", rows)
            connection.commit()
            connection.close()

    def prepare(self, folder):
        shutil.copy(self.first, os.path.join(folder, "db"))

    def words(self, folder):
        script = os.path.join(PROGRAMS, "sqlite_bulk.py")
        count = self.transactions // 4 if self.quick else self.transactions
        return [sys.executable, "-B", script, "db", self.journal, str(count), self.synchronous]

    def check(self, folder):
        connection = sqlite3.connect(os.path.join(folder, "db"))
        (said,) = connection.execute("PRAGMA integrity_check").fetchone()
        connection.close()
        if said != "ok":
            raise RuntimeError("the database is damaged: " + said)


class Wal(Sqlite):
    journal, transactions = "wal", 24000


class Delete(Sqlite):
    journal, transactions = "delete", 6000


class WalFull(Sqlite):
    journal, transactions, synchronous = "wal", 6000, "FULL"


class Tar(Job):
    needs = ("tar",)

    def __init__(self, options, shared):
        super().__init__(options, shared)
        self.files, self.archive = 10000 if self.quick else 40000, os.path.join(shared, "small.tar")
        source = random.Random(3)
        with tarfile.open(self.archive, "w") as archive:
            for file in range(self.files):
                content = source.randbytes(source.randrange(500, 4000))
                member = tarfile.TarInfo("d%d/f%d" % (file // 100, file))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    def words(self, folder):
        return ["tar", "--extract", "--file", self.archive]

    def check(self, folder):
        found = len(glob.glob(os.path.join(folder, "d*", "f*")))
        if found != self.files:
            raise RuntimeError("tar has created %d of %d files" % (found, self.files))


class Redis(Job):
    needs = ("redis-server", "redis-benchmark", "redis-cli", "redis-check-aof")
    fsync, requests = "everysec", 500000

    def words(self, folder):
        self.port = unused_port()
        return ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "yes", "--appendfsync",
                self.fsync, "--auto-aof-rewrite-percentage", "0", "--dir", folder]

    def is_ready(self):
        return redis_answers(self.port)

    def load(self):
        count = self.requests // 4 if self.quick else self.requests
        quietly("redis-benchmark", "-p", str(self.port), "-t", "set", "-n", str(count), "-r", "100000", "-d", "100",
                "-c", "20", "-q")

    def end(self):
        # The server closes the connection without a reply, so redis-cli reports an error.
        subprocess.run(["redis-cli", "-p", str(self.port), "SHUTDOWN", "NOSAVE"], stdin=subprocess.DEVNULL,
                       capture_output=True)

    def check(self, folder):
        for manifest in glob.glob(os.path.join(folder, "**", "*.manifest"), recursive=True):
            quietly("redis-check-aof", manifest)


class RedisAlways(Redis):
    fsync, requests = "always", 100000


class Postgresql(Job):
    needs = ("pgbench", "setpriv", *(os.path.join(POSTGRESQL, name) for name in ("initdb", "postgres", "pg_ctl")))
    # The server refuses to run as root.
    USER = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def tool(self, name):
        return os.path.join(POSTGRESQL, name)

    def prepare(self, folder):
        self.data, self.sockets = os.path.join(folder, "data"), folder
        for above in (os.path.dirname(os.path.dirname(os.path.dirname(folder))), os.path.dirname(os.path.dirname(folder)),
                      os.path.dirname(folder)):
            os.chmod(above, 0o755)
        shutil.chown(folder, "postgres", "postgres")
        quietly(*self.USER, self.tool("initdb"), "-D", self.data, "-A", "trust", "--no-sync", cwd=folder)

    def words(self, folder):
        self.port = unused_port()
        return [*self.USER, self.tool("postgres"), "-D", self.data, "-p", str(self.port), "-k", self.sockets]

    def client(self, *words):
        return ["pgbench", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", *words, "postgres"]

    def is_ready(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def load(self):
        quietly(*self.client("--initialize", "--scale=2", "--quiet"))
        quietly(*self.client("--client=2", "--transactions=%d" % (500 if self.quick else 2000), "--no-vacuum"))

    def end(self):
        quietly(*self.USER, self.tool("pg_ctl"), "stop", "-D", self.data, "--mode=fast")


class Mariadb(Job):
    needs = ("mariadbd", "mariadb-install-db", "mariadb-slap", "mariadb-admin", "innochecksum")

    def prepare(self, folder):
        first = os.path.join(self.shared, "mariadb")
        if not os.path.exists(first):
            quietly("mariadb-install-db", "--no-defaults", "--user=root", "--datadir=" + first, "--skip-test-db",
                    "--auth-root-authentication-method=normal", "--innodb-log-file-size=8M")
        shutil.copytree(first, os.path.join(folder, "data"))

    def words(self, folder):
        self.port = unused_port()
        return ["mariadbd", "--no-defaults", "--user=root", "--datadir=" + os.path.join(folder, "data"),
                "--port=%d" % self.port, "--bind-address=127.0.0.1", "--socket=" + os.path.join(folder, "sock"),
                "--pid-file=" + os.path.join(folder, "pid"), "--innodb-buffer-pool-size=32M",
                "--innodb-log-file-size=8M", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=1",
                # The default is io_uring, which undying cannot restore.
                "--innodb-use-native-aio=0"]

    def client(self, tool, *words):
        return [tool, "--no-defaults", "--host=127.0.0.1", "--port=%d" % self.port, "--user=root", "--protocol=tcp",
                *words]

    def is_ready(self):
        return subprocess.run(self.client("mariadb-admin", "ping"), stdin=subprocess.DEVNULL,
                              capture_output=True).returncode == 0

    def load(self):
        rows, updates = (2000, 1000) if self.quick else (10000, 4000)
        quietly(*self.client("mariadb-slap", "--auto-generate-sql", "--auto-generate-sql-load-type=update",
                             "--auto-generate-sql-add-autoincrement", "--auto-generate-sql-write-number=%d" % rows,
                             "--auto-generate-sql-execute-number=%d" % updates, "--concurrency=4", "--engine=innodb"))

    def end(self):
        quietly(*self.client("mariadb-admin", "shutdown"))

    def check(self, folder):
        for table in glob.glob(os.path.join(folder, "data", "*", "*.ibd")):
            quietly("innochecksum", table)


KINDS = {"tar": Tar, "cpu": Cpu, "make": Make, "redis": Redis, "wal": Wal, "delete": Delete, "mariadb": Mariadb,
         "wal-full": WalFull, "redis-always": RedisAlways, "postgresql": Postgresql}


# Runs ---------------------------------------------------------------------------------------------------------------

class Guarded:
    """The command `undying run` with its options (`front`), and the figures of its subject at the end."""

    def __init__(self, options, every_ms, policy, store):
        self.words = [options.undying, "--store", store]
        self.front = [*self.words, "run", "--name", "job", "--restart", "never", "--every", "%dms" % every_ms,
                      "--files", policy.split("@")[0], "--"]
        self.store = store

    def figures(self):
        said = subprocess.run([*self.words, "status", "job", "--json"], capture_output=True, text=True)
        status = json.loads(said.stdout)[0] if said.returncode == 0 else {}
        pauses = status.get("pause_us") or {}
        occupied = subprocess.run(["du", "--summarize", "--block-size=1K", self.store], capture_output=True, text=True)
        return {"checkpoints": status.get("checkpoints", ""), "pause_us_p50": pauses.get("p50", ""),
                "pause_us_p99": pauses.get("p99", ""), "store_mib": int(occupied.stdout.split()[0]) / 1024,
                "refused": sum(one["count"] for one in status.get("refusals", []))}


def reaped(process):
    """Waits for the end of a process. Returns its processor time in s, with that of its reaped descendants."""
    end = time.monotonic() + LIMIT_S
    while True:
        pid, code, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(code)
            return used.ru_utime + used.ru_stime
        if time.monotonic() > end:
            raise RuntimeError("the program did not end in time")
        time.sleep(0.002)


def run_once(program, folder, guarded, niceness):
    """Runs the program once in a new folder. Returns the figures of the run."""
    os.mkdir(folder)
    program.prepare(folder)
    words = [*(guarded.front if guarded else []), *SILENT, *program.words(folder)]
    is_server = hasattr(program, "is_ready")
    os.sync()
    with tempfile.TemporaryFile(mode="w+", errors="replace") as said:
        begin = time.monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder,
                                   start_new_session=True, preexec_fn=on(os.sched_getaffinity(0), niceness))
        try:
            if is_server:
                wait_for(lambda: process.poll() is not None or program.is_ready(), "the server")
                if process.returncode is not None:
                    raise RuntimeError("the server has ended")
                begin = time.monotonic()
                program.load()
                wall = time.monotonic() - begin
                program.end()
            used = reaped(process)
            if not is_server:
                wall = time.monotonic() - begin
            if process.returncode != 0:
                raise RuntimeError("ended with status %d" % process.returncode)
        except BaseException as failure:
            if process.returncode is None:
                # The process group contains undying, the program and its processes.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            raise RuntimeError("%s: %s: %s" % (" ".join(words), failure, said.read()[-2000:])) from failure
    program.check(folder)
    return dict(wall_s=wall, cpu_s=used, **(guarded.figures() if guarded else {}))


def ratios(figures, others, name):
    return {"by_" + name: figures["wall_s"] / others["wall_s"], "cpu_by_" + name: figures["cpu_s"] / others["cpu_s"]}


class Measurement:
    """The measurement of one program in all rounds."""

    def __init__(self, options, scratch, name, epochs, policies):
        self.options, self.name, self.epochs, self.policies = options, name, epochs, policies
        self.folder = os.path.join(scratch, name)
        shared = os.path.join(self.folder, "shared")
        os.makedirs(shared)
        self.program, self.count = KINDS[name](options, shared), 0

    def one(self, every_ms=None, policy=None):
        self.count += 1
        folder = os.path.join(self.folder, "run-%d" % self.count)
        store = os.path.join(self.folder, "store-%d" % self.count)
        guarded = Guarded(self.options, every_ms, policy, store) if policy else None
        return run_once(self.program, folder, guarded, self.options.nice)

    def turn(self, rows, number):
        """Measures one round, and adds its rows."""
        cases = [(every, policy) for every in self.epochs for policy in self.policies]
        before, found = self.one(), {}
        for case in reversed(cases) if number % 2 else cases:
            found[case] = self.one(*case)
        after = self.one()
        bare = {name: (before[name] + after[name]) / 2 for name in ("wall_s", "cpu_s")}
        rows.add(program=self.name, every_ms="", files="bare", round=number, **after, **ratios(after, before, "bare"))
        for (every, policy), figures in found.items():
            rows.add(program=self.name, every_ms=every, files=policy, round=number, **figures,
                     **ratios(figures, bare, "bare"), **ratios(figures, found[every, self.policies[0]], "first"))

    def all(self, rows):
        try:
            for number in range(self.options.rounds):
                self.turn(rows, number)
        finally:
            if self.name != "tar":
                shutil.rmtree(self.folder, ignore_errors=True)


def column(rows, name, program, files, every=None):
    return [float(one[name]) for one in rows if one["program"] == program and one["files"] == files and one.get(name)
            and (every is None or int(one["every_ms"]) == every)]


def tell(rows, program, epochs, policies):
    print("%-8s bare                %s s, after by before %s" % (
        program, spread(column(rows, "wall_s", program, "bare")), spread(column(rows, "by_bare", program, "bare"))))
    for every in epochs:
        for policy in policies:
            of = lambda name: column(rows, name, program, policy, every)
            print("%-8s %-8s %5d ms    wall %s by bare, %s by %s, processor time %.3f, %.3f, %d checkpoints, "
                  "pause p50 %.0f us, store %.0f MiB" % (
                      program, policy, every, spread(of("by_bare")), spread(of("by_first")), policies[0],
                      middle(of("cpu_by_bare")), middle(of("cpu_by_first")), middle(of("checkpoints") or [0]),
                      middle(of("pause_us_p50")), middle(of("store_mib"))), flush=True)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    programs = [name for name in KINDS if any(one["program"] == name for one in rows)]
    guarded = [one for one in rows if one["files"] != "bare"]
    epochs = sorted({int(one["every_ms"]) for one in guarded})
    policies = list(dict.fromkeys(one["files"] for one in guarded))
    figure, panes = plot.subplots(1, len(epochs), squeeze=False, layout="constrained", sharey=True,
                                  figsize=(5.2 * len(epochs), 3.4))
    width = 0.8 / max(1, len(policies))
    for pane, every in zip(panes.flat, epochs):
        for place, program in enumerate(programs):
            noise = 100 * middle([abs(one - 1) for one in column(rows, "by_bare", program, "bare")])
            pane.fill_between([place - 0.45, place + 0.45], -noise, noise, color="0.85", lw=0, zorder=0)
            for index, policy in enumerate(policies):
                found = [100 * one - 100 for one in column(rows, "by_bare", program, policy, every)]
                if not found:
                    continue
                spot = place - 0.4 + width * (index + 0.5)
                pane.bar(spot, middle(found), 0.9 * width, color="C%d" % index, zorder=2,
                         label=policy if place == 0 else None)
                pane.plot([spot, spot], [min(found), max(found)], color="black", lw=1, zorder=3)
            goal, first = GOALS.get(program, {}).get(every), column(rows, "by_bare", program, policies[0], every)
            if goal and first:
                # The goal is relative to the first policy, but the plot is relative to the bare run.
                pane.plot([place - 0.45, place + 0.45], [100 * goal * middle(first) - 100] * 2, color="crimson", lw=1.5,
                          zorder=4)
        pane.set_xticks(range(len(programs)), programs)
        pane.set(title="a checkpoint every %d ms" % every, ylabel="longer than bare, %")
        pane.set_yscale("symlog", linthresh=10)
    panes[0, 0].plot([], [], color="crimson", label="goal of rewind")
    panes[0, 0].plot([], [], color="black", lw=1, label="minimum to maximum")
    panes[0, 0].fill_between([], [], color="0.85", label="noise (median)")
    figure.legend(*panes[0, 0].get_legend_handles_labels(), ncols=6, loc="outside upper center", fontsize=8)
    save(plot, figure, path.replace(".csv", ".png"))


def known(options, policies):
    """Returns the policies that this version of undying supports."""
    said = quietly(options.undying, "run", "--help")
    there = [policy for policy in policies if policy.split("@")[0] + ":" in said]
    for policy in policies:
        if policy not in there:
            print("unsupported: --files " + policy, file=sys.stderr)
    return there


def bench():
    parser = results(__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of shorter runs, which takes some minutes")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the program and `undying`, for a busy machine")
    parser.add_argument("--rounds", type=int, help="number of rounds [5]")
    parser.add_argument("--policies", default=POLICIES, help="values of `--files` [%s]; keep,keep@2 measures "
                        "one policy twice, which shows the noise" % POLICIES)
    parser.add_argument("--every", default="100,1000", help="intervals of checkpoints in ms [100,1000]")
    parser.add_argument("--only", default=",".join(KINDS), help="programs, separated by commas [all]")
    parser.add_argument("--place", help="folder for files and stores [the temporary folder]")
    parser.add_argument("--plot", metavar="CSV", help="only draw the plot of earlier rows again")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    options.rounds = options.rounds or (1 if options.quick else 5)
    epochs = [int(every) for every in options.every.split(",")]
    policies = known(options, options.policies.split(","))
    if not policies:
        sys.exit("nothing to measure")
    tempfile.tempdir = options.place and os.path.abspath(options.place)
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        for name in options.only.split(","):
            missing = [tool for tool in KINDS[name].needs if not shutil.which(tool)]
            if missing:
                print("unsupported: %s (%s)" % (", ".join(missing), name), file=sys.stderr, flush=True)
                continue
            try:
                Measurement(options, scratch, name, epochs, policies).all(rows)
            except RuntimeError as failure:
                rows.file.write("# failed: %s: %s\n" % (name, " ".join(str(failure).split())))
                print("failed: %s: %s" % (name, failure), file=sys.stderr, flush=True)
            tell(rows.rows, name, epochs, policies)
    main(work)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
