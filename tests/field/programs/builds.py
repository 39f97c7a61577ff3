"""Builds of a generated C project, with two compilers at a time. After all kills, the built program must be correct.

The compiler writes each object file to a temporary name, and the build renames the complete file. Otherwise, after a
kill and a start from the beginning, the build tool could use an incomplete object file.
"""
import glob
import os

from lib import project
from lib.program import Job, Wrong

UNITS = 24
PARTS = 12


class Build(Job):
    group, limit_s = "build", 240
    every = "150ms"

    def prepare(self):
        for name, text in project.sources(UNITS, PARTS):
            self.write("source/" + name, text)

    def built(self):
        return glob.glob(self.path("build", "**", "*.o"), recursive=True)

    def progress(self):
        """Returns the fraction of the object files that exist."""
        return len(self.built()) / (UNITS + 1)

    def check_output(self):
        due = project.printed(UNITS, PARTS)
        found = self.tool(self.path("build", "program")).strip()
        if found != str(due):
            raise Wrong("the built program prints %s, not %d" % (found, due))
        left = [path for path in glob.glob(self.path("tmp", "*"))]
        if left and not self.may_leave_files():
            raise Wrong("%d temporary files remain, the first is %s" % (len(left), os.path.basename(left[0])))

    def may_leave_files(self):
        """Returns whether temporary files may remain: a killed compiler leaves its files, even without `undying`."""
        return True

    def environment(self):
        os.makedirs(self.path("tmp"), exist_ok=True)
        return {**super().environment(), "TMPDIR": self.path("tmp")}


class Make(Build):
    name, needs = "make", {"make": "make", "cc": "gcc"}

    def prepare(self):
        super().prepare()
        self.make_folder("build")
        self.write("Makefile", "units := $(patsubst source/%.c,build/%.o,$(wildcard source/*.c))\n"
                   "build/program: $(units)\n\tcc -o $@.new $^ && mv $@.new $@\n"
                   "build/%.o: source/%.c\n\tcc -O2 -c -o $@.new $< && mv $@.new $@\n")

    def program(self):
        return ["make", "-j2"]

    def command(self):
        return self.program()


class Ninja(Build):
    name, needs = "ninja", {"ninja": "ninja-build", "cc": "gcc"}

    def prepare(self):
        super().prepare()
        self.make_folder("build")
        units = [name[:-2] for name in sorted(os.listdir(self.path("source")))]
        self.write("build.ninja", "rule cc\n  command = cc -O2 -c -o $out.new $in && mv $out.new $out\n"
                   "rule link\n  command = cc -o $out.new $in && mv $out.new $out\n"
                   + "".join("build build/%s.o: cc source/%s.c\n" % (unit, unit) for unit in units)
                   + "build build/program: link %s\n" % " ".join("build/%s.o" % unit for unit in units))

    def command(self):
        return ["ninja", "-j2"]


class Cmake(Build):
    """cmake, which has generated its own files for make. It links to the final name, without a temporary name."""

    name, needs = "cmake", {"cmake": "cmake", "make": "make", "cc": "gcc"}

    def prepare(self):
        super().prepare()
        self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.10)\nproject(field C)\n"
                   "file(GLOB units source/*.c)\nadd_executable(program ${units})\n"
                   "set(CMAKE_C_COMPILE_OBJECT \"<CMAKE_C_COMPILER> -O2 -o <OBJECT>.new -c <SOURCE>\" "
                   "\"mv <OBJECT>.new <OBJECT>\")\n")
        self.tool("cmake", "-S", self.folder, "-B", self.path("build"), "-DCMAKE_BUILD_TYPE=Release")

    def command(self):
        return ["cmake", "--build", self.path("build"), "-j2"]
