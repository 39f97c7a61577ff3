"""nats-server with JetStream. Each item is an acknowledged message in a stream on disk."""
import json

from lib.program import Line, Service, Wrong


class Nats(Service):
    name, group, durable = "nats-jetstream", "server", True
    needs = {"nats-server": "nats-server"}
    # SIGINT. After SIGTERM, the server exits with 1, and `undying run` would restart it.
    stop_signal = 2

    def prepare(self):
        self.write("nats.conf", 'host: 127.0.0.1\nport: %d\njetstream { store_dir: "%s" }\n' % (
            self.port, self.path("store")))
        self.has_stream = False

    def command(self):
        return ["nats-server", "-c", self.path("nats.conf")]

    def open(self):
        self.connection = Line(self.port)
        self.connection.line()
        self.connection.send('CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB answer 1\r\n')
        if not self.has_stream:
            self.request("$JS.API.STREAM.CREATE.FIELD", json.dumps(
                {"name": "FIELD", "subjects": ["field"], "storage": "file", "retention": "limits", "num_replicas": 1}))
            self.has_stream = True

    def request(self, subject, body):
        self.connection.send("PUB %s answer %d\r\n%s\r\n" % (subject, len(body), body))
        while True:
            said = self.connection.line()
            if said == "PING":
                self.connection.send("PONG\r\n")
            elif said.startswith("MSG"):
                return json.loads(self.connection.read(int(said.split()[-1]) + 2))
            elif said.startswith("HMSG"):
                self.connection.read(int(said.split()[-1]) + 2)
                raise OSError("JetStream does not answer yet")
            elif said.startswith("-ERR"):
                raise OSError(said)

    def put(self, number):
        said = self.request("field", str(number))
        if "error" in said or "seq" not in said:
            raise Wrong("the reply to the message is %r" % said)

    def items(self):
        import base64
        state = self.request("$JS.API.STREAM.INFO.FIELD", "")["state"]
        found = []
        for sequence in range(state["first_seq"], state["last_seq"] + 1) if state["messages"] else ():
            said = self.request("$JS.API.STREAM.MSG.GET.FIELD", json.dumps({"seq": sequence}))
            if "message" not in said:
                raise Wrong("message %d cannot be read: %r" % (sequence, said.get("error")))
            found.append(int(base64.b64decode(said["message"]["data"])))
        return found
