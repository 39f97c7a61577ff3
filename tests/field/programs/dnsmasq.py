"""dnsmasq, a DNS server. Clients query names of a hosts file over UDP."""
import socket
import struct

from lib.program import Service, Wrong


class Dnsmasq(Service):
    name, group = "dnsmasq", "server"
    needs = {"dnsmasq": "dnsmasq-base"}

    def prepare(self):
        self.write("hosts", "".join("10.9.%d.%d n%d.field\n" % (at // 200, at % 200 + 1, at) for at in range(400)))

    def command(self):
        return ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--user=root",
                "--pid-file=" + self.path("pid"), "--listen-address=127.0.0.1", "--bind-interfaces",
                "--port=%d" % self.port, "--addn-hosts=" + self.path("hosts"), "--log-facility=" + self.path("log")]

    def open(self):
        self.connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.connection.settimeout(2)
        self.connection.connect(("127.0.0.1", self.port))

    def put(self, number):
        at = number % 400
        name = b"".join(bytes([len(label)]) + label.encode() for label in ("n%d" % at, "field")) + b"\0"
        self.connection.send(struct.pack(">6H", number & 0xFFFF, 0x0100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1))
        said = self.connection.recv(512)
        while said[:2] != struct.pack(">H", number & 0xFFFF):  # A late reply to an earlier query.
            said = self.connection.recv(512)
        if said[-4:] != bytes([10, 9, at // 200, at % 200 + 1]):
            raise Wrong("the reply to n%d.field is %r" % (at, said[-4:]))

    def items(self):
        return sorted(self.acknowledged)
