"""Jobs: programs that end by themselves, and leave the same files in each run. A class describes one job."""
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
    """A program that ends by itself. `prepare` writes its input files. Its directory is compared after its end."""

    group = "rewind"
    # Whether the whole tree is restored after the death of any of its processes (`--restart-on child-signal`).
    restart_on_child = False
    # The file for its standard output, in its directory, like with `>` in a shell.
    output = None
    # Patterns of names. Files in `ignored` are not compared. Of files in `loose`, the content is not compared. Two
    # uninterrupted runs differ in these files.
    ignored, loose = (), ()
    # Fraction of the work that is done with --quick.
    quick_part = 0.3

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
        """Returns text that must be equal after each run, in addition to the files.

        Also calls the consistency check of the program, which raises Wrong. Leaves the directory unchanged.
        """
        return ""

    def script(self, name, *words, python=sys.executable):
        return [python, os.path.join(SCRIPTS, name), *map(str, words)]


class Make(Work):
    """make builds static libraries and a program from generated C files. The tools of the build use temporary files."""

    name, needs, restart_on_child = "make", {"make": "make", "cc": "gcc", "ar": "binutils"}, True
    units, parts, libraries = 64, 18, 4
    quick_part = 0.35
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
            raise Wrong("make would rebuild a target")
        return found


class CsvJson(Work):
    name = "csv-json"
    quick_part = 0.35

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
    """A shell and its children write to the same standard output, which is a regular file."""

    name, restart_on_child, output = "stdout", True, "output.txt"

    def command(self):
        return ["sh", os.path.join(SCRIPTS, "mix.sh"), os.path.realpath(sys.executable), self.steps(800)]


class Ffmpeg(Work):
    """ffmpeg with two muxers. One muxer seeks back and reads its file again, the other appends to its file."""

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
    """git in a new repository.

    The index file contains times and inode numbers, so its bytes are not compared. Instead, `facts` returns the output
    of `git ls-files` and `git status`, which is compared.
    """

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
        # Uses a copy, because `git status` writes the index file again.
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
            # In the mode WAL, a reader creates these files, too.
            for end in ("-wal", "-shm"):
                if os.path.exists(self.path("base.db" + end)):
                    os.remove(self.path("base.db" + end))


class SqliteDelete(SqliteWal):
    name, mode, all_steps = "sqlite-delete", "DELETE", 2500


class Lmdb(Work):
    """LMDB, written by system calls. Its lock file is not compared, because it contains pids and times."""

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
    """RocksDB. Its content is compared, and not its files.

    The files contain times, and background threads flush and compact them at different moments in each run.
    """

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
