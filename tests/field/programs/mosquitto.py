"""mosquitto, an MQTT server. Each item is a retained message, which its own clients publish and read."""
from lib.program import Service, Wrong


class Mosquitto(Service):
    name, group = "mosquitto", "server"
    needs = {"mosquitto": "mosquitto", "mosquitto_pub": "mosquitto-clients"}
    burst, pace_s = 15, 0.02

    def prepare(self):
        self.write("mosquitto.conf", "listener %d 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\n" % self.port)

    def command(self):
        return ["mosquitto", "-c", self.path("mosquitto.conf")]

    def open(self):
        """Does nothing: each client process opens a connection."""

    def put(self, number):
        try:
            self.tool("mosquitto_pub", "-p", self.port, "-q", "1", "-r", "-t", "item/%d" % number, "-m", number)
        except Wrong as failure:
            raise OSError(str(failure)) from failure

    def items(self):
        # The server sends the retained messages first. -W ends the client one second later, with exit code 27.
        said = self.tool("sh", "-c", 'mosquitto_sub -p "$1" -t "item/#" -W 1 --retained-only; [ $? -le 27 ]', "sub", self.port)
        return [int(line) for line in said.split()]
