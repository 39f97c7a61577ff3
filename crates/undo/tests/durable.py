"""Makes data durable and sends data, in the order in which standard input names the actions.

Arguments: a directory, the port of a TCP server outside, and the path of a Unix server outside.
"""

import ctypes
import mmap
import os
import socket
import sys
import threading

root, port, unix = sys.argv[1], int(sys.argv[2]), sys.argv[3]
path = os.path.join(root, "data")
libc = ctypes.CDLL(None, use_errno=True)
RWF_DSYNC = 2

data = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.write(data, b"x" * 8192)
mapping = mmap.mmap(data, 4096)
through = os.open(path + "-through", os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o644)

server = socket.create_server(("127.0.0.1", 0))
unix_server = socket.socket(socket.AF_UNIX)
unix_server.bind(os.path.join(root, "served"))
unix_server.listen()
# A server chooses its port itself.
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
    free.bind(("127.0.0.1", 0))
    free_port = free.getsockname()[1]
udp_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp_server.bind(("127.0.0.1", free_port))
print(server.getsockname()[1], udp_server.getsockname()[1], flush=True)
accepted, unix_accepted = server.accept()[0], unix_server.accept()[0]
client = socket.create_connection(("127.0.0.1", port))
unix_client = socket.socket(socket.AF_UNIX)
unix_client.connect(unix)
caller = udp_server.recvfrom(100)[1]
inside = socket.create_connection(server.getsockname())
inside_accepted = server.accept()[0]


def exchange_inside():
    inside.sendall(b"question")
    inside_accepted.recv(8)
    inside_accepted.sendall(b"answer")
    inside.recv(6)


def in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def in_child(action):
    child = os.fork()
    if child == 0:
        action()
        os._exit(0)
    os.waitpid(child, 0)


actions = {
    "write": lambda: os.pwrite(data, b"y", 5000),
    "fsync": lambda: os.fsync(data),
    "fdatasync": lambda: os.fdatasync(data),
    "fsync-in-thread": lambda: in_thread(lambda: os.fsync(data)),
    "fsync-in-child": lambda: in_child(lambda: os.fsync(data)),
    "syncfs": lambda: libc.syncfs(data),
    "sync": os.sync,
    "msync": mapping.flush,
    "pwritev2": lambda: os.pwritev(data, [b"z"], 100, RWF_DSYNC),
    "write-through": lambda: os.pwrite(through, b"z", 200),
    "open-through": lambda: os.close(os.open(path, os.O_WRONLY | os.O_SYNC)),
    "reply": lambda: accepted.sendall(b"reply"),
    "reply-in-child": lambda: in_child(lambda: accepted.sendall(b"reply")),
    "reply-unix": lambda: unix_accepted.sendall(b"reply"),
    "reply-udp": lambda: udp_server.sendto(b"reply", caller),
    "request": lambda: client.sendall(b"request"),
    "request-by-sendfile": lambda: os.sendfile(client.fileno(), data, 0, 100),
    "request-unix": lambda: unix_client.sendall(b"request"),
    "inside": exchange_inside,
    "pipe": lambda: os.write(1, b""),
    "nothing": lambda: None,
}

for line in sys.stdin:
    for action in line.split():
        actions[action]()
    print("done", flush=True)
