"""etcd. Clients write keys through the JSON gateway. etcdctl reads hashes, and saves and checks a snapshot."""
import base64
import http.client
import json
import os
import shutil

from lib.program import Service, Wrong
from lib.system import free_port


class Etcd(Service):
    name, group, durable = "etcd", "database", True
    needs = {"etcd": "etcd-server", "etcdctl": "etcd-client"}
    limit_s = 180

    def prepare(self):
        self.peer_port = free_port()

    def environment(self):
        return {"ETCDCTL_API": "3", "ETCD_UNSUPPORTED_ARCH": ""}

    def command(self):
        client, peer = "http://127.0.0.1:%d" % self.port, "http://127.0.0.1:%d" % self.peer_port
        return ["etcd", "--name", "field", "--data-dir", self.path("data"), "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", "field=" + peer, "--snapshot-count", "200", "--log-level", "error"]

    def open(self):
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def ask(self, verb, body):
        try:
            self.connection.request("POST", "/v3/kv/" + verb, json.dumps(body))
            answer = self.connection.getresponse()
            said = answer.read().decode()
        except http.client.HTTPException as failure:
            raise OSError("HTTP: %r" % failure) from failure
        if answer.status in (500, 503, 504):
            raise OSError(said)
        if answer.status != 200:
            raise Wrong("the reply to %s is %d %s" % (verb, answer.status, said[:100]))
        return json.loads(said)

    def is_ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/health")
            return b"true" in connection.getresponse().read()
        except http.client.HTTPException:
            return False
        finally:
            connection.close()

    def put(self, number):
        self.ask("put", self.entry("item", number))

    def entry(self, prefix, number):
        return {"key": encoded("%s/%08d" % (prefix, number)), "value": encoded("value %d" % number * 20)}

    def items(self):
        return self.numbers("item")

    def numbers(self, prefix):
        """Returns the numbers of the entries below a prefix."""
        found = self.ask("range", {"key": encoded(prefix + "/"), "range_end": encoded(prefix + "0")})
        numbers = []
        for entry in found.get("kvs", []):
            number = int(base64.b64decode(entry["key"])[len(prefix) + 1:])
            if base64.b64decode(entry["value"]).decode() != "value %d" % number * 20:
                raise Wrong("item %d has another value" % number)
            numbers.append(number)
        return numbers

    def etcdctl(self, *words):
        return self.tool("etcdctl", "--endpoints=127.0.0.1:%d" % self.port, *words, what="etcdctl " + words[0])

    def own_check(self):
        self.etcdctl("endpoint", "health")
        self.etcdctl("endpoint", "hashkv")
        saved = self.path("saved.db")
        if os.path.exists(saved):
            os.remove(saved)
        self.etcdctl("snapshot", "save", saved)
        # `snapshot status` checks the consistency of all pages of the snapshot. It does not compare the appended hash.
        self.etcdctl("snapshot", "status", saved)

    def check_files(self):
        if shutil.which("bbolt"):
            self.tool("bbolt", "check", self.path("data", "member", "snap", "db"))


def encoded(text):
    return base64.b64encode(text.encode()).decode()
