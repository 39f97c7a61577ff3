"""ffmpeg encodes a generated video in real time. The frames must be the same as without `undying`."""
import re

from lib.program import Job, Wrong


class Ffmpeg(Job):
    name, group = "ffmpeg", "science"
    needs = {"ffmpeg": "ffmpeg"}
    frames = 100

    def words(self, out, *more):
        return ["ffmpeg", "-nostdin", "-y", "-loglevel", "error", *more, "-f", "lavfi", "-i",
                "testsrc=size=160x120:rate=25", "-frames:v", str(self.frames), "-c:v", "mpeg4", "-threads", "2",
                "-flags", "+bitexact", "-fflags", "+bitexact", "-flush_packets", "1", self.path(out)]

    def prepare(self):
        self.tool(*self.words("due.nut"))
        self.due = self.hashes("due.nut")

    def hashes(self, name):
        return self.tool("ffmpeg", "-nostdin", "-loglevel", "error", "-i", self.path(name), "-f", "framemd5", "-")

    def command(self):
        return self.words("film.nut", "-re")

    def progress(self):
        import os
        try:
            return os.path.getsize(self.path("film.nut")) / os.path.getsize(self.path("due.nut"))
        except OSError:
            return 0.0

    def check_output(self):
        found = self.hashes("film.nut")
        if found != self.due:
            lines = [line for line in found.splitlines() if re.match(r"\d", line)]
            raise Wrong("the video differs: %d frames instead of %d" % (len(lines), self.frames))
