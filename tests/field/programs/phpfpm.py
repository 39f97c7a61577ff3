"""php-fpm with a master and two workers, over FastCGI. Its processes count the requests in shared memory."""
import glob
import os
import struct

from lib.program import Service, Wrong
from lib.system import connect

BINARY = next(iter(sorted(glob.glob("/usr/sbin/php-fpm*"), reverse=True)), "/usr/sbin/php-fpm8.2")
SCRIPT = "<?php echo 'item ', $_GET['item'], ' ', strlen(serialize(range(1, 1000)));\n"
CONFIGURATION = """
[global]
error_log = {folder}/error.log
daemonize = no
[field]
listen = 127.0.0.1:{port}
user = nobody
group = nogroup
pm = static
pm.max_children = 2
access.log = {folder}/access.log
access.format = "/?%q"
"""


class PhpFpm(Service):
    name, group = "php-fpm", "language"
    needs = {BINARY: "php-fpm"}

    def prepare(self):
        self.write("page.php", SCRIPT)
        self.write("fpm.conf", CONFIGURATION.format(folder=self.folder, port=self.port))
        self.answer = None

    def command(self):
        return [BINARY, "-n", "-F", "-y", self.path("fpm.conf")]

    def open(self):
        """Does nothing: each request opens a connection."""

    def put(self, number):
        query = "item=%d" % number
        parameters = b"".join(pair(name, value) for name, value in {
            "SCRIPT_FILENAME": self.path("page.php"), "REQUEST_METHOD": "GET", "QUERY_STRING": query, "SCRIPT_NAME": "/page.php",
            "REQUEST_URI": "/page.php?" + query, "SERVER_PROTOCOL": "HTTP/1.1"}.items())
        with connect(self.port) as connection:
            connection.sendall(record(1, struct.pack(">HB5x", 1, 0)) + record(4, parameters) + record(4, b"") + record(5, b""))
            said = b""
            while part := connection.recv(65536):
                said += part
        if not said:
            raise EOFError("the connection was closed")
        if b"item %d 9" % number not in said and b"item %d 1" % number not in said:
            raise Wrong("the reply to request %d is %r" % (number, said[:200]))

    def items(self):
        with open(self.path("access.log")) as file:
            return [int(line.split("=")[1]) for line in file if "item=" in line]


def record(kind, body):
    return struct.pack(">BBHHBx", 1, kind, 1, len(body), 0) + body


def pair(name, value):
    name, value = os.fsencode(name), os.fsencode(value)
    return struct.pack(">B", len(name)) + struct.pack(">I", len(value) | 1 << 31) + name + value
