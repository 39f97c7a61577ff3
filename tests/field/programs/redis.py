"""redis-server: a list that grows in one transaction with a counter; without persistence, and with a log of commands."""
import glob

from lib.program import Line, Service, Wrong


class Redis(Service):
    name, group, quick = "redis", "server", True
    needs = {"redis-server": "redis-server"}

    def command(self):
        return ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
                "--enable-debug-command", "yes"]

    def ask(self, *words):
        self.connection.send(" ".join(map(str, words)) + "\r\n")
        return answer(self.connection)

    def put(self, number):
        for words in ("MULTI",), ("INCR", "count"), ("RPUSH", "items", number), ("EXEC",):
            self.ask(*words)

    def items(self):
        found = [int(item) for item in self.ask("LRANGE", "items", 0, -1)]
        count = int(self.ask("GET", "count"))
        if count != len(found):
            raise Wrong("the counter is %d, the list has %d items" % (count, len(found)))
        return found

    def is_ready(self):
        connection = Line(self.port)
        try:
            return connection.ask("PING") == "+PONG"
        finally:
            connection.close()


def answer(connection):
    line = connection.line()
    kind, rest = line[:1], line[1:]
    if kind == "-":
        # While it loads its log it says so; a client comes again.
        raise OSError(rest) if rest.startswith("LOADING") else Wrong(rest)
    if kind == "*":
        return [answer(connection) for _ in range(int(rest))]
    if kind == "$":
        return connection.read(int(rest) + 2)[:-2].decode()
    return rest


class RedisLog(Redis):
    """The log of commands and the memory must tell the same after each death.

    A restart cuts a file that was only appended back to the checkpoint, and keeps its tail aside: both go back together.
    """

    name, group, quick = "redis-aof", "database", False
    needs = {"redis-server": "redis-server", "redis-check-aof": "redis-tools"}

    def command(self):
        return [*super().command(), "--appendonly", "yes", "--appendfsync", "always"]

    def own_check(self):
        before = self.ask("LRANGE", "items", 0, -1)
        self.ask("DEBUG", "LOADAOF")
        if self.ask("LRANGE", "items", 0, -1) != before:
            raise Wrong("the log of commands holds another list than the memory")

    def check_files(self):
        for log in glob.glob(self.path("appendonlydir", "*.manifest")):
            self.tool("redis-check-aof", log)
