"""Python with a generator, a thread, a dictionary and a large integer. All of them must survive each kill."""
import sys

from lib.program import Job

SOURCE = r'''
import os, queue, threading, time
steps, pause, out = int(os.environ["FIELD_STEPS"]), float(os.environ["FIELD_STEP_S"]), open(os.environ["FIELD_OUT"], "a")
todo, done, table, big = queue.Queue(), queue.Queue(), {}, 1

def worker():
    value = 1
    for step in iter(todo.get, None):
        value = (value * 1021 + step) % 1000003
        done.put(value)

thread = threading.Thread(target=worker)
thread.start()
numbers = (step for step in range(1, steps + 1))
for step in numbers:
    todo.put(step)
    table["key %d" % step] = done.get()
    big = big * 3 + step
    out.write("%d %d\n" % (step, table["key %d" % step]))
    out.flush()
    time.sleep(pause)
todo.put(None)
thread.join()
expected = 1
for step in range(1, steps + 1):
    expected = expected * 3 + step
assert big == expected and len(table) == steps
'''


class Python(Job):
    name, group, quick = "python", "language", True
    needs = {"python3": "python3"}
    source, source_name = SOURCE, "job.py"

    def version(self):
        return sys.version.split()[0]

    def program(self):
        return [sys.executable, self.path("job.py")]
