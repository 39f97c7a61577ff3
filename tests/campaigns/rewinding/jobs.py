"""Programs that leave the same files whenever they run: what they start with, how they start, what is compared."""
import os
import random
import shutil
import sqlite3
import subprocess
import sys

from lib import project
from lib.program import Program, Wrong, python_with

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")


class Work(Program):
    """A program with an end. `prepare` writes what it starts with; the folder is compared after its end."""

    group = "rewind"
    # Whether the death of any of its processes takes all of them back (`--restart-on child-signal`).
    restart_on_child = False
    # The file of its folder that its standard output is sent to, as a shell does it with `>`.
    output = None
    # Names that are not compared, and names whose bytes are not, since two uninterrupted runs differ in them.
    ignored, loose = (), ()
    # The part of the work that the short form does.
    quick_part = 0.5

    def __init__(self, folder, random, part=1.0):
        super().__init__(folder, random)
        self.part = part

    def environment(self):
        return {"HOME": self.folder, "TMPDIR": self.path("tmp"), "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"}

    def prepare(self):
        self.make_folder("tmp")

    def steps(self, all_steps):
        return str(int(all_steps * self.part))

    def facts(self):
        """What must be equal beside the files; asks the program's own checker. Changes nothing in the folder."""
        return ""

    def script(self, name, *words, python=sys.executable):
        return [python, os.path.join(SCRIPTS, name), *map(str, words)]


class Make(Work):
    """Units, static libraries and a program; compilers, assemblers and archivers have temporary files."""

    name, needs, restart_on_child = "make", {"make": "make", "cc": "gcc", "ar": "binutils"}, True
    units, parts, libraries = 64, 18, 4
    quick_part = 0.6
    makefile = """\
libraries := $(foreach n,{numbers},build/libunits$n.a)
build/program: build/main.o $(libraries)
\tcc -o $@ $^ && strip -o $@.stripped $@
define library
build/libunits$1.a: $2
\tar rcsD $$@ $$^ && ranlib -D $$@
endef
{rules}
build/%.o: source/%.c
\tcc -O2 -g -c -o $@ $<
"""

    def prepare(self):
        super().prepare()
        units = int(self.units * self.part)
        for name, text in project.sources(units, self.parts):
            self.write("source/" + name, text)
        members = [["build/unit%d.o" % unit for unit in range(units) if unit % self.libraries == number]
                   for number in range(self.libraries)]
        rules = "\n".join("$(eval $(call library,%d,%s))" % (number, " ".join(names)) for number, names in enumerate(members))
        self.write("Makefile", self.makefile.format(numbers=" ".join(map(str, range(self.libraries))), rules=rules))
        self.make_folder("build")

    def command(self):
        return ["make", "-s", "-j2"]

    def facts(self):
        found, due = self.tool(self.path("build", "program")).strip(), project.printed(int(self.units * self.part), self.parts)
        if found != str(due):
            raise Wrong("the built program prints %s, not %d" % (found, due))
        if subprocess.run(["make", "-q"], cwd=self.folder, stdin=subprocess.DEVNULL).returncode != 0:
            raise Wrong("make would build something again")
        return found


class CsvJson(Work):
    name = "csv-json"
    quick_part = 0.6

    def prepare(self):
        super().prepare()
        with open(self.path("header.bin"), "wb") as file:
            file.write(bytes(4096))

    def command(self):
        return self.script("csv_json.py", self.folder, self.steps(4000), 0.001)


class Changes(Work):
    name = "changes"

    def command(self):
        return self.script("changes.py", self.folder, self.steps(6000), 0.001)


class Mix(Work):
    """A shell and its children write to standard output, which is a regular file."""

    name, restart_on_child, output = "stdout", True, "output.txt"

    def command(self):
        return ["sh", os.path.join(SCRIPTS, "mix.sh"), os.path.realpath(sys.executable), self.steps(800)]


class Ffmpeg(Work):
    """Two muxers: one seeks back and reads its file again, one appends."""

    name, needs = "ffmpeg", {"ffmpeg": "ffmpeg"}

    def command(self):
        return ["ffmpeg", "-nostdin", "-y", "-loglevel", "error", "-f", "lavfi", "-i",
                "testsrc2=size=480x270:rate=25:duration=%s" % self.steps(70), "-threads", "1", "-flags", "+bitexact",
                "-fflags", "+bitexact", "-c:v", "libx264", "-x264-params", "threads=1", "-movflags", "+faststart",
                self.path("film.mp4"), "-c:v", "mpeg4", "-threads", "1", "-flags", "+bitexact", "-fflags", "+bitexact",
                self.path("film.nut")]

    def facts(self):
        return "".join(self.tool("ffmpeg", "-nostdin", "-loglevel", "error", "-i", self.path(name), "-f", "md5", "-")
                       for name in ("film.mp4", "film.nut"))


class Git(Work):
    """The bytes of the index hold times and inode numbers; what they mean is compared by `ls-files` and `status`."""

    name, needs, restart_on_child = "git", {"git": "git"}, True
    loose = ("repository/.git/index",)

    def environment(self):
        settings = {"gc.auto": "0", "pack.threads": "1", "user.name": "One", "user.email": "one@example.com",
                    "gc.autoDetach": "false", "maintenance.auto": "false", "advice.detachedHead": "false"}
        found = {**super().environment(), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": str(len(settings))}
        for number, (key, value) in enumerate(settings.items()):
            found.update({"GIT_CONFIG_KEY_%d" % number: key, "GIT_CONFIG_VALUE_%d" % number: value})
        return found

    def command(self):
        return ["sh", os.path.join(SCRIPTS, "git.sh"), self.path("repository"), self.steps(280)]

    def facts(self):
        # On a copy: git writes the index anew when it asks for the status.
        copy = self.path("..", "asked")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.path("repository"), copy, symlinks=True)
        git = lambda *words: self.tool("git", "-C", copy, *words, what="git " + words[0])
        try:
            return git("fsck", "--full", "--strict") + git("ls-files", "-s") + git("status", "--porcelain") + git(
                "for-each-ref") + git("rev-list", "--all", "--objects")
        finally:
            shutil.rmtree(copy)


class TarZstd(Work):
    name, restart_on_child = "tar-zstd", True
    needs = {"tar": "tar", "zstd": "zstd"}

    def prepare(self):
        super().prepare()
        draw = random.Random(7)
        words = [b"%x" % draw.randrange(1 << 40) for _ in range(4000)]
        for number in range(int(2200 * self.part)):
            folder = self.make_folder("tree/%d" % (number % 40))
            with open(os.path.join(folder, "file%d" % number), "wb") as file:
                file.write(b" ".join(draw.choices(words, k=draw.randrange(2000))))

    def command(self):
        return ["sh", "-c", "tar --sort=name --owner=0 --group=0 --mtime=@0 -c tree | zstd -q -16 -T1 >tree.tar.zst"]

    def facts(self):
        self.tool("zstd", "-q", "-t", self.path("tree.tar.zst"))
        return ""


class SqliteWal(Work):
    name, mode = "sqlite-wal", "WAL"
    # The name that reads its dump.
    quick_part, all_steps = 0.6, 4000

    def command(self):
        return self.script("sqlite_job.py", self.path("base.db"), self.mode, self.steps(self.all_steps), 0.001)

    def facts(self):
        base = sqlite3.connect("file:%s?mode=ro" % self.path("base.db"), uri=True)
        try:
            said = [row[0] for row in base.execute("PRAGMA integrity_check")]
            if said != ["ok"]:
                raise Wrong("integrity_check: %s" % said[:3])
            return "\n".join(base.iterdump())
        finally:
            base.close()
            # Even a reader makes them where the mode is WAL.
            for end in ("-wal", "-shm"):
                if os.path.exists(self.path("base.db" + end)):
                    os.remove(self.path("base.db" + end))


class SqliteDelete(SqliteWal):
    name, mode, all_steps = "sqlite-delete", "DELETE", 2500


class Lmdb(Work):
    """The bytes of the lock file hold pids and times."""

    name, extra_packages, how = "lmdb", ("python3-lmdb",), "write"
    ignored = ("base/lock.mdb",)

    def prepare(self):
        super().prepare()
        self.make_folder("base")

    def command(self):
        return self.script("lmdb_job.py", self.how, self.path("base"), self.steps(3500), 0.001, python=python_with("lmdb"))

    def facts(self):
        return self.tool(*self.script("lmdb_job.py", "dump", self.path("base"), python=python_with("lmdb")))


class LmdbMapped(Lmdb):
    name, how = "lmdb-writemap", "map"


class RocksDb(Work):
    """Its files bear times, and flushes and compactions run beside: its content is compared, not its files."""

    name, needs = "rocksdb", {"ldb": "rocksdb-tools", "sst_dump": "rocksdb-tools"}
    ignored = ("base", "base/*")

    def prepare(self):
        super().prepare()
        with open(self.path("input.txt"), "w") as file:
            for number in range(int(self.steps(1600000))):
                file.write("key%08d ==> value %d of %d\n" % (number * 7919 % 1000003, number, number * 31))

    def command(self):
        return ["sh", "-c", 'exec ldb --db="$1" --create_if_missing --write_buffer_size=1048576 load <input.txt', "sh",
                self.path("base")]

    def facts(self):
        self.tool("ldb", "--db=" + self.path("base"), "checkconsistency")
        self.tool("sst_dump", "--file=" + self.path("base"), "--command=verify")
        return self.tool("ldb", "--db=" + self.path("base"), "scan")


JOBS = {kind.name: kind for kind in (Make, CsvJson, Changes, Mix, Ffmpeg, Git, TarZstd, SqliteDelete, SqliteWal, Lmdb, LmdbMapped,
                                    RocksDb)}
