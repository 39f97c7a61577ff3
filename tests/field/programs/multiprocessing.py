"""Python multiprocessing: a pool, a queue, a lock, a shared value, and shared memory in /dev/shm."""
import sys

from lib.program import Job

SOURCE = r'''
import os, time
from multiprocessing import Lock, Process, Queue, Value, Pool
from multiprocessing.shared_memory import SharedMemory

def worker(todo, done, lock, count, name):
    memory, value = SharedMemory(name), 1
    for step in iter(todo.get, None):
        value = (value * 1021 + step) % 1000003
        with lock:
            count.value += 1
            memory.buf[0] = step % 251
        done.put(value)
    memory.close()

def square(number):
    return number * number

if __name__ == "__main__":
    steps, pause, out = int(os.environ["FIELD_STEPS"]), float(os.environ["FIELD_STEP_S"]), open(os.environ["FIELD_OUT"], "a")
    todo, done, lock, count = Queue(), Queue(), Lock(), Value("i", 0)
    memory = SharedMemory(create=True, size=4096)
    process = Process(target=worker, args=(todo, done, lock, count, memory.name))
    process.start()
    with Pool(2) as pool:
        for step in range(1, steps + 1):
            todo.put(step)
            out.write("%d %d\n" % (step, done.get()))
            out.flush()
            assert memory.buf[0] == step % 251 and count.value == step
            assert pool.map(square, range(4)) == [0, 1, 4, 9]
            time.sleep(pause)
    todo.put(None)
    process.join()
    memory.close()
    memory.unlink()
'''


class Multiprocessing(Job):
    name, group = "multiprocessing", "language"
    needs = {"python3": "python3"}
    source, source_name = SOURCE, "job.py"

    def version(self):
        return sys.version.split()[0]

    def program(self):
        return [sys.executable, self.path("job.py")]
