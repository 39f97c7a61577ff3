"""Part four of the demo: kills each program of a system several times, while each request passes through all four."""
import json
import mmap
import os
import re
import shlex
import shutil
import statistics
import sys
import time

from guarded_system import GuardedSystem
from redis_part import Redis, command, free_port
from screen import Failure, milliseconds, number

SHOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shop")
sys.path.insert(0, SHOP)
import load  # noqa: E402

NAMES = ("redis", "web", "proxy", "load")
# The ports in system.toml. `write` replaces them with free ports, because other programs may use them.
PORTS = ("7801", "7802", "7803")
KILLS = [("redis",), ("web",), ("proxy",), ("load",), ("redis", "web"), ("proxy", "load"), ("web", "proxy"),
         ("redis", "load")]
BETWEEN_S = 0.5


def run(screen, undying, folder):
    file, redis_port = write(folder)
    screen.title("4. Four programs as one system, under `undying up system.toml`")
    show(screen, file)
    system = GuardedSystem(undying, file, NAMES)
    screen.line("started", "load sends requests to proxy, proxy to web, and web counts each visit in redis")
    counts = Counts(os.path.join(folder, "counts"))
    returns = {name: [] for name in NAMES}
    for index, names in enumerate(KILLS):
        let_serve(screen, counts, index)
        moment = system.kill(names)
        took = {name: system.wait_ready(name, moment) for name in names}
        for name in names:
            returns[name].append(took[name])
        screen.above("killed", f"{' and '.join(names):16}" + "ready after " + " and ".join(map(milliseconds, took.values())))
    let_serve(screen, counts, len(KILLS))
    status = system.status()
    visits = visits_of(redis_port)
    if (code := system.down()) != 0:
        raise Failure(f"after `undying down`, the guardian ended with status {code}:\n{system.said()}")
    judge(screen, status, counts.read(), visits, returns)


def write(folder):
    """Copies the system to `folder`, with free ports. Returns the path of the system file, and the port of redis."""
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = os.path.join(folder, "system.toml")
    with open(file, encoding="ascii") as source:
        text = source.read()
    ports = free_ports(len(PORTS))
    text = re.sub("|".join(PORTS), lambda port: ports[PORTS.index(port[0])], text)
    with open(file, "w", encoding="ascii") as copy:
        copy.write(text)
    return file, int(ports[0])


def free_ports(count):
    ports = set()
    while len(ports) < count:
        ports.add(str(free_port()))
    return list(ports)


def show(screen, file):
    """Prints one line for each component: its policy, checkpoint interval, dependencies and command."""
    with open(file, encoding="ascii") as source:
        tables = source.read().split("\n\n[component.")[1:]
    for table in tables:
        name, *lines = table.splitlines()
        keys = dict(line.split(" = ", 1) for line in lines)
        facts = [json.loads(keys["policy"])]
        if "every" in keys:
            facts.append(f"every {json.loads(keys['every'])}")
        if "needs" in keys:
            facts.append(f"needs {', '.join(json.loads(keys['needs']))}")
        screen.line(name.rstrip("]"), f"{', '.join(facts):28}{shlex.join(json.loads(keys['command']))}")


class Counts:
    """The counters of the load generator, in shared memory."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def read(self):
        return load.read(self.memory)


def let_serve(screen, counts, index):
    """Waits between two kills while clients send requests, and shows the counters."""
    began, passed = time.monotonic(), 0.0
    while passed < BETWEEN_S:
        passed = min(time.monotonic() - began, BETWEEN_S)
        now = counts.read()
        screen.progress("requests", index + passed / BETWEEN_S, len(KILLS) + 1,
                        f"{number(now['answered'])} answered, {now['refused']} refused, "
                        f"longest stall {milliseconds(now['longest_us'] / 1e6)}")
        time.sleep(0.05)


def judge(screen, status, counts, visits, returns):
    errors = counts["refused"] + counts["failed"]
    if errors or not counts["answered"]:
        raise Failure(f"{counts['refused']} requests were refused, {counts['failed']} had another error, "
                      f"{counts['answered']} were answered")
    for name in NAMES:
        lives, kills = status[name]["incarnation"], len(returns[name])
        if lives != kills + 1:
            raise Failure(f"{name} was killed {kills} times, but the number of its incarnation is {lives}")
        way = "last checkpoint" if name == "redis" else "beginning"
        times = returns[name]
        screen.good(name, f"killed {kills} times, each time restarted from its {way}; ready after "
                          f"{milliseconds(statistics.median(times))} (median), {milliseconds(max(times))} (longest)")
    screen.good("requests", f"{number(counts['answered'])} answered, 0 refused, 0 with another error; "
                            f"longest stall {milliseconds(counts['longest_us'] / 1e6)}")
    screen.line("", f"{number(counts['cut'])} connections ended without a reply when a program died; "
                    "their requests were repeated, and answered")
    screen.line("", f"{number(counts['lost'])} requests were in progress when load itself was killed")
    screen.line("", f"redis has counted {number(visits)} visits; visits between a checkpoint and a death are lost")


def visits_of(port):
    with Redis(port) as client:
        client.send(command(b"GET", b"visits"))
        return int(client.value(int(client.line()[1:])))
