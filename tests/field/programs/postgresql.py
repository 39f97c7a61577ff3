"""PostgreSQL. Each item is a committed transaction of psql. pg_amcheck checks the table and its indexes."""
import glob
import os
import subprocess

from lib.program import Service, Wrong

BINARIES = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)), "/usr/lib/postgresql/15/bin")


class Shell:
    """The client program psql, which reads statements from a pipe."""

    def __init__(self, words, environment):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, bufsize=1, env={**os.environ, **environment})

    def ask(self, statement):
        """Executes a statement. Returns the last line of the reply before the end mark `field-end`."""
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        last = ""
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise EOFError("the client ended: " + last)
            if line.strip() == "field-end":
                return last
            last = line.strip() or last

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # The client has already exited.
            pass


class Postgresql(Service):
    name, group, durable, user = "postgresql", "database", True, "postgres"
    needs = {os.path.join(BINARIES, "postgres"): "postgresql-15", "setpriv": "util-linux"}
    limit_s, stop_signal = 180, 2

    def prepare(self):
        self.tool(os.path.join(BINARIES, "initdb"), "-D", self.path("data"), "-A", "trust", "--no-sync", limit_s=90)
        with open(self.path("data", "postgresql.conf"), "a") as file:
            file.write("port = %d\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '%s'\n"
                       "shared_buffers = 16MB\ncheckpoint_timeout = 30s\nmax_wal_size = 32MB\n"
                       % (self.port, self.folder))

    def command(self):
        return self.as_user(os.path.join(BINARIES, "postgres"), "-D", self.path("data"))

    def words(self, program, *words):
        return [os.path.join(BINARIES, program), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", *words]

    def is_ready(self):
        return subprocess.run(self.words("pg_isready"), capture_output=True).returncode == 0

    def open(self):
        self.connection = Shell(self.words("psql", "-X", "-q", "-A", "-t", "-d", "postgres"), {"PGCONNECT_TIMEOUT": "10"})
        self.ask("CREATE TABLE IF NOT EXISTS item (number bigint PRIMARY KEY, text text); "
                 "CREATE INDEX IF NOT EXISTS by_text ON item (text);")

    def ask(self, statement):
        said = self.connection.ask("SET client_min_messages = warning; %s\n\\echo field-end" % statement)
        if "ERROR" in said:
            raise Wrong(said)
        if "FATAL" in said or "server closed" in said or "connection" in said:
            raise OSError(said)
        return said

    def put(self, number):
        said = self.ask("INSERT INTO item VALUES (%d, repeat('%d ', 40)) RETURNING number;" % (
            number, number * 7919 % 10007))
        if said != str(number):
            raise OSError("the reply to INSERT is %r" % said)

    def items(self):
        return [int(word) for word in self.ask("SELECT string_agg(number::text, ' ') FROM item;").split()]

    def own_check(self):
        self.tool(*self.words("pg_amcheck", "--install-missing", "--heapallindexed", "--rootdescend", "-d", "postgres"),
                  what="pg_amcheck")

    def check_files(self):
        said = self.tool(os.path.join(BINARIES, "pg_controldata"), self.path("data"))
        if "shut down" not in said:
            raise Wrong("pg_controldata: the server did not shut down cleanly")
