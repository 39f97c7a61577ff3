"""Scientific programs. They compute the common recurrence for a vector, and write its sum in each step."""
from lib.program import FACTOR, MODULUS, Job, python_with

SIZE = 100


class Vectors(Job):
    group = "science"
    steps, every = 80, "300ms"

    def expected(self):
        values, lines = list(range(1, SIZE + 1)), []
        for step in range(1, self.steps + 1):
            values = [(value * FACTOR + step) % MODULUS for value in values]
            lines.append("%d %d" % (step, sum(values)))
        return lines


class Numpy(Vectors):
    """numpy and scipy, with the threads of a BLAS library."""

    name = "numpy-scipy"
    extra_packages = ("python3-numpy", "python3-scipy")
    source_name = "job.py"
    source = r'''
import os, time
import numpy, scipy.linalg
values, matrix = numpy.arange(1, 101, dtype=numpy.int64), numpy.eye(200) * 2
with open(os.environ["FIELD_OUT"], "a") as out:
    for step in range(1, int(os.environ["FIELD_STEPS"]) + 1):
        values = (values * 1021 + step) % 1000003
        inverse = scipy.linalg.inv(matrix)
        assert numpy.allclose(inverse @ matrix, numpy.eye(200))
        out.write("%d %d\n" % (step, values.sum()))
        out.flush()
        time.sleep(float(os.environ["FIELD_STEP_S"]))
'''

    def program(self):
        return [python_with("scipy.linalg"), self.path("job.py")]


class Octave(Vectors):
    name, needs, source_name = "octave", {"octave-cli": "octave"}, "job.m"
    source = r'''
values = 1:100; out = fopen(getenv("FIELD_OUT"), "a");
for step = 1:str2num(getenv("FIELD_STEPS"))
  values = mod(values * 1021 + step, 1000003);
  fprintf(out, "%d %d\n", step, sum(values)); fflush(out);
  pause(str2num(getenv("FIELD_STEP_S")));
end
fclose(out);
'''

    def program(self):
        return ["octave-cli", "--no-init-file", "--quiet", self.path("job.m")]


class R(Vectors):
    name, needs, source_name = "r", {"Rscript": "r-base-core"}, "job.R"
    source = r'''
values <- as.numeric(1:100); out <- file(Sys.getenv("FIELD_OUT"), "a")
for (step in 1:as.integer(Sys.getenv("FIELD_STEPS"))) {
  values <- (values * 1021 + step) %% 1000003
  cat(sprintf("%d %d\n", step, as.integer(sum(values))), file = out); flush(out)
  Sys.sleep(as.numeric(Sys.getenv("FIELD_STEP_S")))
}
close(out)
'''

    def program(self):
        return ["Rscript", "--vanilla", self.path("job.R")]


class Gnuplot(Vectors):
    name, needs, source_name = "gnuplot", {"gnuplot": "gnuplot-nox"}, "job.gp"
    source = r'''
array values[100]
do for [i=1:100] { values[i] = i }
set print system("printenv FIELD_OUT") append
steps = int(system("printenv FIELD_STEPS"))
do for [step=1:steps] {
  total = 0
  do for [i=1:100] { values[i] = (values[i] * 1021 + step) % 1000003; total = total + values[i] }
  print sprintf("%d %d", step, total)
  pause 0.04
}
'''

    def program(self):
        return ["gnuplot", self.path("job.gp")]
