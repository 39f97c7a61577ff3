"""haproxy with a master and a worker. It answers requests itself. Its Unix socket reports the number of requests."""
import socket

from lib.program import WebService, Wrong

CONFIGURATION = """
global
  master-worker
  stats socket {folder}/admin.sock mode 600 level admin
  maxconn 100
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend web
  bind 127.0.0.1:{port}
  http-request return status 200 content-type text/plain string "field"
"""


class Haproxy(WebService):
    name, group = "haproxy", "server"
    needs = {"haproxy": "haproxy"}

    def prepare(self):
        self.write("haproxy.cfg", CONFIGURATION.format(folder=self.folder, port=self.port))

    def command(self):
        return ["haproxy", "-W", "-db", "-f", self.path("haproxy.cfg")]

    def admin(self, text):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.path("admin.sock"))
            connection.sendall(text.encode() + b"\n")
            return connection.makefile("r").read()

    def is_ready(self):
        # Does not connect to the HTTP port, because haproxy would count this connection as a request.
        return "Uptime" in self.admin("show info")

    def items(self):
        """Checks the request counter of haproxy, which has no access log. Returns all acknowledged items."""
        row = next(line.split(",") for line in self.admin("show stat").splitlines() if line.startswith("web,FRONTEND"))
        requests = int(row[48])
        if requests > self.sent:
            raise Wrong("it counts %d requests, %d were sent" % (requests, self.sent))
        if not self.may_lack and requests != self.sent:
            raise Wrong("it counts %d requests, %d were sent" % (requests, self.sent))
        return sorted(self.acknowledged)
