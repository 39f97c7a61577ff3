"""redis-server, without persistence and with an append-only file. Each item extends a list and a counter."""
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
        # While redis loads its append-only file, it replies LOADING. The client then tries again.
        raise OSError(rest) if rest.startswith("LOADING") else Wrong(rest)
    if kind == "*":
        return [answer(connection) for _ in range(int(rest))]
    if kind == "$":
        return connection.read(int(rest) + 2)[:-2].decode()
    return rest


class RedisLog(Redis):
    """redis with an append-only file. The file and the memory must have the same content after each death.

    redis only appends to this file. A restore therefore truncates the file to its length at the checkpoint, and stores
    the removed end elsewhere. The memory and the file then have the same state.
    """

    name, group, quick = "redis-aof", "database", False
    needs = {"redis-server": "redis-server", "redis-check-aof": "redis-tools"}

    def command(self):
        return [*super().command(), "--appendonly", "yes", "--appendfsync", "always"]

    def own_check(self):
        before = self.ask("LRANGE", "items", 0, -1)
        self.ask("DEBUG", "LOADAOF")
        if self.ask("LRANGE", "items", 0, -1) != before:
            raise Wrong("the list in the append-only file differs from the list in memory")

    def check_files(self):
        for log in glob.glob(self.path("appendonlydir", "*.manifest")):
            self.tool("redis-check-aof", log)
