"""Counts in several threads, with files, a mapping, a pipe and a queue. Checks all counters and files after SIGTERM.

Usage: counter.py FOLDER PORT. Accepts TCP connections on PORT. The reply to the line `status` contains the number of
the reply on this connection, the number of errors, and all counters, which never decrease. Exits with 0 if no error was
found, else with 1.
"""
import mmap
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time

FOLDER, PORT = sys.argv[1], int(sys.argv[2])
SLOTS = 512
stopping = threading.Event()
counters = {}
problems = []


def expect(good, text):
    if not good:
        problems.append(text)
        print(text, file=sys.stderr, flush=True)


def write_lines(name):
    """Appends lines with the numbers 1 to n to a file. At the end, checks that the file contains all of them."""
    with open(os.path.join(FOLDER, name), "w+", encoding="ascii") as file:
        while not stopping.is_set():
            counters[name] += 1
            file.write(f"{counters[name]}\n")
            if counters[name] % 50 == 0:
                file.flush()
                time.sleep(0.001)
        file.flush()
        file.seek(0)
        lines = file.read().split()
        expect(lines == [str(n + 1) for n in range(counters[name])], f"{name}: {len(lines)} lines")


def update_slots(name):
    """Adds 1 to the slots (8-byte counters) of a file, one after the other, with pread(2) and pwrite(2)."""
    file = os.open(os.path.join(FOLDER, name), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.pwrite(file, bytes(8 * SLOTS), 0)
    while not stopping.is_set():
        number = counters[name]
        place = 8 * (number % SLOTS)
        (old,) = struct.unpack("<Q", os.pread(file, 8, place))
        expect(old == number // SLOTS, f"{name}: slot {place} holds {old}")
        os.pwrite(file, struct.pack("<Q", old + 1), place)
        counters[name] += 1
        time.sleep(0.0005)
    os.close(file)


def count_in_mapping(name):
    """Counts in a shared mapping of a file. Checks the mapping, and at the end the file."""
    path = os.path.join(FOLDER, name)
    with open(path, "wb") as file:
        file.write(bytes(4096))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as area:
        while not stopping.is_set():
            counters[name] += 1
            area[0:8] = struct.pack("<Q", counters[name])
            time.sleep(0.0005)
            expect(struct.unpack("<Q", area[0:8])[0] == counters[name], f"{name}: the mapping lost a count")
    with open(path, "rb") as file:
        expect(struct.unpack("<Q", file.read(8))[0] == counters[name], f"{name}: the file lost a count")


def send_through_pipe(name, end):
    while not stopping.is_set():
        counters[name] += 1
        os.write(end, struct.pack("<Q", counters[name]))
    os.close(end)


def receive_from_pipe(name, end):
    """Receives numbers from a pipe. Checks that each number arrives once, and in order."""
    while record := os.read(end, 8):
        counters[name] += 1
        expect(struct.unpack("<Q", record)[0] == counters[name], f"{name}: {record} at {counters[name]}")
        if counters[name] % 100 == 0:
            time.sleep(0.001)


def produce(name, line):
    while not stopping.is_set():
        counters[name] += 1
        line.put(counters[name])
        time.sleep(0.0005)
    line.put(None)


def consume(name, line):
    while (number := line.get()) is not None:
        counters[name] += 1
        expect(number == counters[name], f"{name}: {number} at {counters[name]}")


def serve(client):
    answers = 0
    with client, client.makefile("rw", encoding="ascii", newline="\n") as stream:
        for line in stream:
            expect(line.strip() == "status", f"unknown request {line!r}")
            answers += 1
            stream.write(f"{answers} {len(problems)} " + " ".join(str(n) for n in counters.values()) + "\n")
            stream.flush()


def accept(listener):
    while True:
        client, _address = listener.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    listener = socket.create_server(("127.0.0.1", PORT))
    (reading, writing), line = os.pipe(), queue.Queue(100)
    work = [(write_lines, "lines0"), (write_lines, "lines1"), (update_slots, "slots")]
    work += [(count_in_mapping, "mapping"), (send_through_pipe, "sent", writing)]
    work += [(receive_from_pipe, "received", reading), (produce, "produced", line), (consume, "consumed", line)]
    threads = []
    for function, name, *more in work:
        counters[name] = 0
        threads.append(threading.Thread(target=function, args=(name, *more)))
    for thread in threads:
        thread.start()
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    while not stopping.is_set():
        stopping.wait(0.05)
    for thread in threads:
        thread.join()
    expect(counters["sent"] == counters["received"], "the pipe lost something")
    expect(counters["produced"] == counters["consumed"], "the queue lost something")
    print("judged:", counters, flush=True)
    sys.exit(1 if problems else 0)


main()
