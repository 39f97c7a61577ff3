"""beanstalkd, a job queue. Its binlog is synchronized to disk after each write."""
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
            raise Wrong("the reply to put is %r" % said)

    def items(self):
        """Returns the items of all jobs in the queue. The command `peek` does not remove a job from the queue."""
        found, last = [], self.count()
        for job in range(1, last + 1):
            said = self.connection.ask("peek %d" % job)
            if said.startswith("FOUND"):
                found.append(int(self.connection.read(int(said.split()[2]) + 2)))
        return found

    def count(self):
        """Returns an upper limit of all job ids. The server has created at most two jobs for each item."""
        return 2 * self.sent + 100

    def check_files(self):
        if not os.listdir(self.path("log")):
            raise Wrong("the binlog is gone")
