"""beanstalkd: jobs in a queue, with a binlog that is synchronised at each write."""
import os

from lib.program import Service, Wrong


class Beanstalkd(Service):
    name, group, durable = "beanstalkd", "server", True
    needs = {"beanstalkd": "beanstalkd"}

    def prepare(self):
        self.make_folder("log")

    def command(self):
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), "-b", self.path("log"), "-f", "0", "-s", "1048576"]

    def put(self, number):
        body = str(number)
        self.connection.send("put 0 0 600 %d\r\n%s\r\n" % (len(body), body))
        if not (said := self.connection.line()).startswith("INSERTED"):
            raise Wrong("put was answered with %r" % said)

    def items(self):
        """Every job, by its id: peek does not take it from the queue."""
        found, last = [], self.count()
        for job in range(1, last + 1):
            said = self.connection.ask("peek %d" % job)
            if said.startswith("FOUND"):
                found.append(int(self.connection.read(int(said.split()[2]) + 2)))
        return found

    def count(self):
        """An id above that of every job: two jobs an item are more than it has made."""
        return 2 * self.sent + 100

    def check_files(self):
        if not os.listdir(self.path("log")):
            raise Wrong("the binlog is gone")
