"""Kafka: a single broker in KRaft mode, and a client for its protocol. An item is a record that all replicas have.

The client sends messages in the format of version 1, which needs no CRC-32C. The broker converts them.
"""
import glob
import os
import struct
import time
import zlib

from lib.program import Wrong
from lib.system import connect, free_port

from .servers import CLIENT_LIMIT_S, Stored

PRODUCE, FETCH, METADATA = (0, 2), (1, 2), (3, 1)
TOPIC = b"items"
# Longest replies to FETCH, in bytes. Time that the broker may take for a record, in ms.
FETCH_MAX, PRODUCE_MAX_MS = 1 << 20, 10000
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


class Kafka(Stored):
    name, needs = "kafka", {"java": "openjdk-17-jre-headless", "mvn": "maven"}
    artifacts = ("org.apache.kafka:kafka_2.13:3.7.0",)
    start_limit_s, syncs = 90, False

    def prepare(self):
        self.controller = free_port()
        self.write("broker.properties", """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{1}
listeners=PLAINTEXT://127.0.0.1:{0},CONTROLLER://127.0.0.1:{1}
controller.listener.names=CONTROLLER
log.dirs={2}
offsets.topic.replication.factor=1
""".format(self.port, self.controller, self.path("logs")))
        self.tool(*self.java("kafka.tools.StorageTool"), "format", "-t", CLUSTER, "-c", self.path("broker.properties"))

    def java(self, *words):
        jars = os.path.join(self.packages, "kafka_2.13", "*")
        # Without PerfDisableSharedMem, a JVM writes to a mapped file in /tmp all the time.
        return ["java", "-Xmx400m", "-XX:+PerfDisableSharedMem", "-XX:TieredStopAtLevel=1", "-cp", jars, *words]

    def command(self):
        return self.java("kafka.Kafka", self.path("broker.properties"))

    def version(self):
        jars = glob.glob(os.path.join(self.packages, "kafka_2.13", "kafka-clients-*.jar"))
        return os.path.basename(jars[0]).removeprefix("kafka-clients-").removesuffix(".jar") if jars else ""

    def is_ready(self):
        """Reports whether the topic exists and its partition has a leader. The request creates the topic."""
        self.open()
        try:
            reply = self.connection.ask(METADATA, struct.pack(">i", 1) + text(TOPIC))
            brokers = reply.number("i")
            for _ in range(brokers):
                reply.number("i"), reply.text(), reply.number("i"), reply.text()
            reply.number("i"), reply.number("i")
            error, _, _, partitions = reply.number("h"), reply.text(), reply.number("b"), reply.number("i")
            return error == 0 and partitions == 1 and reply.number("h") == 0
        finally:
            self.close()

    def open(self):
        self.connection = Client(self.port)

    def put(self, number):
        value = b"item %d" % number
        content = struct.pack(">bbqi", 1, 0, int(time.time() * 1000), -1) + struct.pack(">i", len(value)) + value
        message = struct.pack(">I", zlib.crc32(content)) + content
        messages = struct.pack(">qi", 0, len(message)) + message
        reply = self.connection.ask(PRODUCE, struct.pack(">hii", -1, PRODUCE_MAX_MS, 1) + text(TOPIC) +
                                    struct.pack(">iii", 1, 0, len(messages)) + messages)
        reply.number("i"), reply.text(), reply.number("i"), reply.number("i")
        if error := reply.number("h"):
            raise OSError("error %d of kafka" % error)

    def items(self):
        found, offset, end = [], 0, 1
        while offset < end:
            reply = self.connection.ask(FETCH, struct.pack(">iiii", -1, 100, 0, 1) + text(TOPIC) +
                                        struct.pack(">iiqi", 1, 0, offset, FETCH_MAX))
            reply.number("i"), reply.number("i"), reply.text(), reply.number("i"), reply.number("i")
            error, end = reply.number("h"), reply.number("q")
            if error:
                raise OSError("error %d of kafka" % error)
            messages = Reply(reply.exactly(reply.number("i")))
            while len(messages.rest) >= 12:
                at, size = messages.number("q"), messages.number("i")
                if size > len(messages.rest):  # The last message of a reply can be cut off.
                    break
                message = Reply(messages.exactly(size))
                message.exactly(14)
                message.exactly(max(message.number("i"), 0))
                if at >= offset:
                    found.append(int(message.exactly(message.number("i")).split()[1]))
                    offset = at + 1
        if len(set(found)) != len(found):
            raise Wrong("%d records exist twice" % (len(found) - len(set(found))))
        return found


class Client:
    """A connection to a broker. Requests are answered one after another."""

    def __init__(self, port):
        self.socket, self.number = connect(port, CLIENT_LIMIT_S), 0

    def ask(self, kind, body):
        self.number += 1
        head = struct.pack(">hhi", *kind, self.number) + text(b"servers")
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        reply = Reply(self.receive(struct.unpack(">i", self.receive(4))[0]))
        if reply.number("i") != self.number:
            raise Wrong("the reply to another request")
        return reply

    def receive(self, size):
        data = b""
        while len(data) < size:
            if not (more := self.socket.recv(size - len(data))):
                raise EOFError("the connection was closed")
            data += more
        return data

    def close(self):
        self.socket.close()


class Reply:
    """The unread part of a reply."""

    def __init__(self, data):
        self.rest = data

    def exactly(self, size):
        found, self.rest = self.rest[:size], self.rest[size:]
        return found

    def number(self, kind):
        return struct.unpack(">" + kind, self.exactly(struct.calcsize(">" + kind)))[0]

    def text(self):
        return self.exactly(max(self.number("h"), 0))


def text(data):
    return struct.pack(">h", len(data)) + data
