"""The servers of the campaign: how each is started as a component, and which requests its clients send.

`ask` sends one request and checks the reply. A server with `write` and `read` also has clients of the class `Numbered`.
"""
import os
import subprocess
import sys

from lib.system import free_port

from .connection import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = b"".join(b"line %d of the page\n" % number for number in range(50))
WORKERS = 2
NGINX = """
daemon off; master_process on; worker_processes {workers}; user root;
pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


def expect(holds, what):
    if not holds:
        raise Failed("wrong reply: " + what)


class Server:
    """A server program with its own directory and port."""

    needs, version_words, has_numbers, has_workers, is_tcp = (), None, False, False, True

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        os.makedirs(os.path.join(folder, "www"))
        with open(self.path("www/page.txt"), "wb") as file:
            file.write(PAGE)

    def path(self, name):
        return os.path.join(self.folder, name)

    @property
    def address(self):
        return ("127.0.0.1", self.port)

    def ready(self):
        """Returns the value of the key `ready` of the system file."""
        return '{ tcp = "127.0.0.1:%d" }' % self.port

    @classmethod
    def version(cls):
        done = subprocess.run(cls.version_words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        words = (done.stdout + done.stderr).replace("=", " ").replace("/", " ").split()
        return next((word.lstrip("v") for word in words if word.lstrip("v")[:1].isdigit()), "?")


class Redis(Server):
    name, needs, version_words, has_numbers = "redis", ("redis-server",), ("redis-server", "--version"), True

    def command(self):
        return ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]

    def ask(self, connection, _number):
        connection.send(b"PING\r\n")
        expect(connection.line() == b"+PONG", "PING")

    def write(self, connection, key, number):
        connection.send(b"SET %s %d\r\n" % (key, number))
        expect(connection.line() == b"+OK", "SET")

    def read(self, connection, key):
        connection.send(b"GET %s\r\n" % key)
        size = int(connection.line().lstrip(b"$"))
        return int(connection.exactly(size + 2)) if size >= 0 else 0


class Memcached(Server):
    name, needs, version_words, has_numbers = "memcached", ("memcached",), ("memcached", "-V"), True

    def command(self):
        return ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(self.port), "-U", "0"]

    def ask(self, connection, _number):
        connection.send(b"version\r\n")
        expect(connection.line().startswith(b"VERSION "), "version")

    def write(self, connection, key, number):
        text = b"%d" % number
        connection.send(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(text), text))
        expect(connection.line() == b"STORED", "set")

    def read(self, connection, key):
        connection.send(b"get %s\r\n" % key)
        head = connection.line()
        if head == b"END":
            return 0
        number = int(connection.exactly(int(head.split()[3]) + 2))
        expect(connection.line() == b"END", "get")
        return number


class Http(Server):
    def ask(self, connection, _number):
        connection.send(b"GET /page.txt HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        status, size = connection.line(), 0
        expect(status.split()[1:2] == [b"200"], status.decode(errors="replace"))
        while line := connection.line():
            name, value = line.split(b":", 1)
            size = int(value) if name.lower() == b"content-length" else size
        expect(connection.exactly(size) == PAGE, "the page")


class Nginx(Http):
    name, needs, version_words, has_workers = "nginx", ("nginx",), ("nginx", "-v"), True

    def command(self):
        with open(self.path("nginx.conf"), "w") as file:
            file.write(NGINX.format(folder=self.folder, port=self.port, workers=WORKERS))
        return ["nginx", "-p", self.folder, "-c", self.path("nginx.conf"), "-e", self.path("error.log")]


class PythonHttp(Http):
    name, version_words = "python http.server", (sys.executable, "--version")

    def command(self):
        return [sys.executable, "-m", "http.server", str(self.port), "--bind", "127.0.0.1", "--protocol", "HTTP/1.1",
                "--directory", self.path("www")]


class Node(Http):
    name, needs, version_words = "node http", ("node",), ("node", "--version")

    def command(self):
        return ["node", os.path.join(HERE, "programs", "http.js"), str(self.port), self.path("www/page.txt")]


class UnixLines(Server):
    name, version_words, is_tcp = "unix socket", (sys.executable, "--version"), False

    @property
    def address(self):
        return self.path("socket")

    def ready(self):
        return "{ listen = true }"

    def command(self):
        return [sys.executable, os.path.join(HERE, "programs", "echo.py"), self.address]

    def ask(self, connection, number):
        line = b"%d" % number
        connection.send(line + b"\n")
        expect(connection.line() == line, "the reply to another request")


SERVERS = {kind.name.split()[0]: kind for kind in (Redis, Memcached, Nginx, PythonHttp, Node, UnixLines)}
