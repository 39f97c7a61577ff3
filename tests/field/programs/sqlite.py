"""SQLite in a server in Python, with a WAL and with a rollback journal. Each item is a committed transaction."""
import sqlite3
import sys

from lib.program import Service, Wrong

SOURCE = r'''
import socketserver, sqlite3, sys
port, path, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
base = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
base.execute("PRAGMA journal_mode=" + mode)
base.execute("PRAGMA synchronous=FULL")
base.execute("PRAGMA wal_autocheckpoint=20")
base.execute("CREATE TABLE IF NOT EXISTS item (number INTEGER PRIMARY KEY, text TEXT)")
base.execute("CREATE INDEX IF NOT EXISTS by_text ON item (text)")

class Client(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            word = line.decode().strip()
            if word == "items":
                found = [row[0] for row in base.execute("SELECT number FROM item ORDER BY number")]
                self.wfile.write((" ".join(map(str, found)) + "\n").encode())
            elif word == "check":
                found = [row[0] for row in base.execute("PRAGMA integrity_check")]
                self.wfile.write((" ".join(found).replace("\n", " ") + "\n").encode())
            else:
                number = int(word)
                base.execute("BEGIN IMMEDIATE")
                base.execute("INSERT INTO item VALUES (?, ?)", (number, "%d " % (number * 7919 % 10007) * 40))
                base.execute("COMMIT")
                self.wfile.write(b"ok\n")

class Server(socketserver.TCPServer):
    allow_reuse_address = True

Server(("127.0.0.1", port), Client).serve_forever()
'''


class SqliteWal(Service):
    name, group, quick, durable = "sqlite-wal", "database", True, True
    needs = {"sqlite3": "sqlite3"}
    mode = "WAL"
    pace_s = 0.004
    # The default `stop_signal`, SIGTERM, kills the server, which has no handler. This death causes no restart.

    def prepare(self):
        self.write("server.py", SOURCE)

    def version(self):
        return sqlite3.sqlite_version

    def command(self):
        return [sys.executable, self.path("server.py"), str(self.port), self.path("base.db"), self.mode]

    def put(self, number):
        if (said := self.connection.ask(str(number))) != "ok":
            raise Wrong("the reply is %r" % said)

    def items(self):
        return [int(word) for word in self.connection.ask("items").split()]

    def own_check(self):
        if (said := self.connection.ask("check")) != "ok":
            raise Wrong("integrity_check: %s" % said[:200])

    def check_files(self):
        said = self.tool("sqlite3", self.path("base.db"), "PRAGMA integrity_check; SELECT count(*) >= %d FROM item"
                         % (len(self.acknowledged)))
        if said.split() != ["ok", "1"]:
            raise Wrong("integrity_check after the end: %s" % said[:200])


class SqliteDelete(SqliteWal):
    name, quick, mode = "sqlite-delete", False, "DELETE"
