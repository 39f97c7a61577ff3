"""The servers of the campaign. An item is a number; `put` returns after the server has acknowledged the item."""
import os
import pathlib
import re
import shutil
import smtplib
import subprocess
import sys

from lib.program import Service, Wrong

HERE = os.path.dirname(os.path.abspath(__file__))
# Time limit of a client program, in seconds.
CLIENT_LIMIT_S = 15


class Stored(Service):
    """The common base class. Each acknowledged item must be found at the end."""

    durable, pace_s = True, 0.005
    # Whether the server uses only TCP. Delayed output does not work for other sockets.
    is_tcp = True
    # Whether the server syncs its files before it replies. Without a policy by name, `undying run` rolls the files of
    # other servers back.
    syncs = True
    # Python modules from PyPI, and Maven artifacts, that the server needs: see `packages.py`.
    modules, artifacts = (), ()
    # The directory of these modules and artifacts.
    packages = None

    @classmethod
    def lacking(cls):
        """Returns the missing modules or artifacts, as text, or None."""
        names = [*cls.modules, *(artifact.split(":")[1] for artifact in cls.artifacts)]
        missing = [name for name in names if not os.path.isdir(os.path.join(cls.packages, name))]
        return ", ".join(missing) or None

    def client(self, *words, said=None):
        """Runs a client program, and returns its output. Its failure counts as a request without acknowledgement."""
        try:
            done = subprocess.run([*map(str, words)], input=said, capture_output=True, text=True, errors="replace",
                                  timeout=CLIENT_LIMIT_S)
        except subprocess.TimeoutExpired as failure:
            raise OSError(str(failure)) from failure
        if done.returncode != 0:
            raise OSError("%s ended with %d: %s" % (words[0], done.returncode, done.stderr.strip()[-200:]))
        return done.stdout


class Script(Stored):
    """A server of `programs/`, which is a Python script with the requests `put` and `list`."""

    needs, source, files_of = {}, None, ()

    def command(self):
        return [sys.executable, os.path.join(HERE, "programs", self.source), str(self.port), *map(self.path, self.files_of)]

    def environment(self):
        return {"PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONPATH": self.packages} if self.modules else {})}

    def put(self, number):
        if (said := self.connection.ask("put %d" % number)) != "ok %d" % number:
            raise Wrong("the reply to put %d is %r" % (number, said))

    def items(self):
        return [int(word) for word in self.connection.ask("list").split()]

    def version(self):
        return ".".join(map(str, sys.version_info[:3]))


class Pages(Script):
    name, source, files_of, syncs = "pages-2mib", "pages.py", ("data",), False


class Mapped(Script):
    name, source, files_of, syncs = "mapped-10mib", "mapped.py", ("map", "journal"), False


class DuckDb(Script):
    name, source, files_of, modules = "duckdb", "duck.py", ("items.duckdb",), ("duckdb",)

    def version(self):
        found = [one for one in os.listdir(self.packages) if re.match(r"duckdb-.*\.dist-info", one)]
        return found[0].split("-")[1].removesuffix(".dist") if found else ""


class Slapd(Stored):
    name, needs = "slapd", {"slapd": "slapd", "ldapadd": "ldap-utils"}
    root, password = "cn=root,dc=field", "field"

    def prepare(self):
        self.make_folder("data")
        modules = next((place for place in ("/usr/lib/ldap", "/usr/lib64/openldap") if os.path.isdir(place)), "")
        self.write("slapd.conf", "include /etc/ldap/schema/core.schema\nmodulepath %s\nmoduleload back_mdb\npidfile %s\n"
                   "database mdb\nsuffix dc=field\nrootdn %s\nrootpw %s\ndirectory %s\nindex objectClass eq\n" % (
                       modules, self.path("pid"), self.root, self.password, self.path("data")))
        text = "dn: dc=field\nobjectClass: dcObject\nobjectClass: organization\ndc: field\no: field\n"
        self.tool("slapadd", "-f", self.path("slapd.conf"), "-l", self.write("first.ldif", text))

    def command(self):
        return ["slapd", "-d", "0", "-h", self.address(), "-f", self.path("slapd.conf")]

    def address(self):
        return "ldap://127.0.0.1:%d" % self.port

    def words(self, tool):
        return [tool, "-x", "-H", self.address(), "-D", self.root, "-w", self.password, "-o", "nettimeout=10"]

    def open(self):
        """Does nothing: each client program opens a connection."""

    def put(self, number):
        self.client(*self.words("ldapadd"),
                    said="dn: cn=%d,dc=field\nobjectClass: device\ncn: %d\ndescription: item\n" % (number, number))

    def items(self):
        said = self.client(*self.words("ldapsearch"), "-LLL", "-b", "dc=field", "(objectClass=device)", "cn")
        return [int(number) for number in re.findall(r"^cn: (\d+)$", said, re.MULTILINE)]

    def check_files(self):
        self.tool("slapcat", "-f", self.path("slapd.conf"), "-l", "/dev/null")


class Dns(Stored):
    """A DNS server with dynamic updates over TCP. The client is nsupdate(1). A zone transfer lists the items."""

    # The option of nsupdate(1) for the protocol. Without an option, nsupdate uses UDP.
    protocol = ("-v",)

    zone = "$TTL 60\n@ IN SOA ns.field. root.field. 1 3600 600 86400 60\n@ IN NS ns.field.\nns IN A 127.0.0.1\n"

    def open(self):
        """Does nothing: each client program opens a connection."""

    def put(self, number):
        self.client("nsupdate", *self.protocol, "-t", "10", said="server 127.0.0.1 %d\nzone field\nupdate add item-%d.field. 60 A "
                    "10.%d.%d.%d\nsend\n" % (self.port, number, number >> 16, number >> 8 & 255, number & 255))

    def items(self):
        said = self.client("dig", "+tcp", "+time=10", "+tries=1", "-p", self.port, "@127.0.0.1", "field", "AXFR")
        if "SOA" not in said:
            raise OSError("no zone transfer: " + said[-200:])
        return [int(number) for number in re.findall(r"^item-(\d+)\.field\.", said, re.MULTILINE)]

    def is_ready(self):
        return bool(self.client("dig", "+tcp", "+short", "+time=2", "+tries=1", "-p", self.port, "@127.0.0.1", "field", "SOA"))


class Bind(Dns):
    name, needs = "bind", {"named": "bind9", "nsupdate": "bind9-dnsutils", "dig": "bind9-dnsutils"}

    def prepare(self):
        self.write("field.zone", self.zone)
        self.write("named.conf", """
            options {{ directory "{0}"; listen-on port {1} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; recursion no;
                       pid-file "{0}/pid"; session-keyfile "{0}/session.key"; allow-transfer {{ any; }}; notify no;
                       dnssec-validation no; managed-keys-directory "{0}"; }};
            controls {{ }};
            zone "field" {{ type primary; file "field.zone"; allow-update {{ 127.0.0.1; }}; }};
            """.format(self.folder, self.port))

    def command(self):
        return ["named", "-g", "-c", self.path("named.conf")]


class BindUdp(Bind):
    name, protocol, is_tcp = "bind-udp", (), False


class Knot(Dns):
    name, needs = "knot", {"knotd": "knot", "nsupdate": "bind9-dnsutils", "dig": "bind9-dnsutils"}

    def prepare(self):
        self.make_folder("data")
        self.make_folder("run")
        self.write("data/field.zone", self.zone)
        self.write("knot.conf", """
server:
    rundir: {0}/run
    listen: 127.0.0.1@{1}
database:
    storage: {0}/data
acl:
  - id: update
    address: 127.0.0.1
    action: [update, transfer]
zone:
  - domain: field
    storage: {0}/data
    file: field.zone
    acl: update
log:
  - target: stderr
    any: info
""".format(self.folder, self.port))

    def command(self):
        return ["knotd", "-c", self.path("knot.conf")]


class Postfix(Stored):
    """Postfix with a configuration and a queue of its own. Mails go to a Maildir, or stay in the queue."""

    name, needs, settle_limit_s, start_limit_s = "postfix", {"postfix": "postfix"}, 40, 60
    master = "/usr/lib/postfix/sbin/master"
    services = (("cleanup", 0), ("qmgr", 1), ("pickup", 1), ("rewrite", "-"), ("bounce", 0), ("defer", 0), ("trace", 0),
                ("error", "-"), ("retry", "-"), ("virtual", "-"), ("anvil", 1), ("proxymap", "-"), ("flush", 0),
                ("showq", "-"), ("tlsmgr", 1))
    programs = {"rewrite": "trivial-rewrite", "defer": "bounce", "trace": "bounce", "retry": "error"}
    public = ("cleanup", "qmgr", "pickup", "flush", "showq")

    def prepare(self):
        for name in ("conf", "queue", "data", "mail"):
            os.mkdir(self.path(name))
        for name in ("data", "mail"):
            shutil.chown(self.path(name), "postfix", "postfix")
        user = os.stat(self.path("data")).st_uid
        self.write("conf/main.cf", """compatibility_level = 3.6
queue_directory = {0}/queue
data_directory = {0}/data
maillog_file_prefixes = {0}
maillog_file = {0}/mail.log
myhostname = field.test
mydestination =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
alias_maps =
virtual_mailbox_domains = items.test
virtual_mailbox_base = {0}/mail
virtual_mailbox_maps = static:box/
virtual_uid_maps = static:{1}
virtual_gid_maps = static:{1}
virtual_minimum_uid = 1
smtpd_recipient_restrictions = permit_mynetworks, reject
minimal_backoff_time = 2s
queue_run_delay = 2s
""".format(self.folder, user))
        rows = ["127.0.0.1:%d inet n - n - - smtpd" % self.port, "postlog unix-dgram n - n - 1 postlogd"]
        for name, limit in self.services:
            wake = {"pickup": "60", "qmgr": "2", "flush": "1000?", "tlsmgr": "1000?"}.get(name, "-")
            rows.append("%s unix %s - n %s %s %s" % (name, "n" if name in self.public else "-", wake, limit,
                                                     self.programs.get(name, name)))
        self.write("conf/master.cf", "\n".join(rows) + "\n")
        self.tool("postfix", "-c", self.path("conf"), "check")

    def command(self):
        return [self.master, "-c", self.path("conf"), "-d"]

    def is_ready(self):
        self.open()
        self.close()
        return True

    def open(self):
        try:
            self.connection = smtplib.SMTP("127.0.0.1", self.port, timeout=CLIENT_LIMIT_S)
        except smtplib.SMTPException as failure:
            raise OSError(str(failure)) from failure

    def put(self, number):
        try:
            self.connection.sendmail("sender@field.test", ["box@items.test"], "Subject: item\r\n\r\nitem-%d.\r\n" % number)
        except smtplib.SMTPException as failure:
            raise OSError(str(failure)) from failure

    def items(self):
        """Returns the numbers of the mails in the mailbox, and of those in the queue."""
        found = set()
        for place in ("mail", "queue/incoming", "queue/active", "queue/deferred"):
            for path in filter(os.path.isfile, pathlib.Path(self.path(place)).rglob("*")):
                try:
                    found.update(map(int, re.findall(rb"item-(\d+)\.", path.read_bytes())))
                except FileNotFoundError:  # The mail was moved or delivered meanwhile.
                    pass
        return found


KINDS = (Pages, Mapped, DuckDb, Slapd, Bind, BindUdp, Knot, Postfix)
