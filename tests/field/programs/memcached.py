"""memcached. Each item is a value, which is compared with the stored value."""
from lib.program import Service, Wrong


class Memcached(Service):
    name, group, quick = "memcached", "server", True
    needs = {"memcached": "memcached"}

    def command(self):
        return ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", "-t", "2"]

    def put(self, number):
        value = "value %d" % number
        self.connection.send("set item%d 0 0 %d\r\n%s\r\n" % (number, len(value), value))
        if (said := self.connection.line()) != "STORED":
            raise Wrong("the reply to set is %r" % said)

    def items(self):
        found = []
        for number in range(1, self.sent + 1):
            if self.connection.ask("get item%d" % number) != "END":
                if self.connection.line() != "value %d" % number:
                    raise Wrong("item %d has another value" % number)
                found.append(number)
                self.connection.line()
        return found
