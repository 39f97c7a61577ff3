"""supervisord with a child process. Its own client sends requests to its Unix socket."""
import subprocess

from lib.program import Service, Wrong

CONFIGURATION = """
[supervisord]
nodaemon=true
user=root
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
childlogdir={folder}
[unix_http_server]
file={folder}/supervisor.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/supervisor.sock
[program:worker]
command=sleep 1000
startsecs=0
"""


class Supervisord(Service):
    name, group = "supervisord", "server"
    needs = {"supervisord": "supervisor"}
    burst, pace_s = 2, 0.2

    def prepare(self):
        self.write("supervisord.conf", CONFIGURATION.format(folder=self.folder))

    def command(self):
        return ["supervisord", "-n", "-c", self.path("supervisord.conf")]

    def open(self):
        """Does nothing: each request starts a client."""

    def control(self, *words):
        return subprocess.run(["supervisorctl", "-c", self.path("supervisord.conf"), *words], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL).stdout

    def is_ready(self):
        return "RUNNING" in self.control("status", "worker")

    def put(self, number):
        said = self.control("pid", "worker").strip()
        if not said.isdigit():
            raise OSError(said)

    def items(self):
        return sorted(self.acknowledged)

    def own_check(self):
        if "started" not in (said := self.control("restart", "worker")):
            raise Wrong("cannot restart the child: %s" % said)
