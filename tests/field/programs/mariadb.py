"""MariaDB with InnoDB. Its own client connects over TCP. The checks are CHECK TABLE EXTENDED and innochecksum."""
import glob
import os
import subprocess

from lib.program import Service, Wrong


class Mariadb(Service):
    name, group, durable, user = "mariadb", "database", True, "mysql"
    needs = {"mariadbd": "mariadb-server", "mariadb": "mariadb-client", "innochecksum": "mariadb-server"}
    limit_s = 180

    def prepare(self):
        self.tool("mariadb-install-db", "--no-defaults", "--datadir=" + self.path("data"), "--auth-root-authentication-method=normal",
                  "--skip-test-db", "--innodb-log-file-size=8M", limit_s=100)

    def command(self):
        return self.as_user("mariadbd", "--no-defaults", "--datadir=" + self.path("data"), "--port=%d" % self.port,
                            "--bind-address=127.0.0.1", "--socket=" + self.path("sock"), "--pid-file=" + self.path("pid"),
                            "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--skip-name-resolve",
                            "--innodb-flush-log-at-trx-commit=1",
                            # The default is io_uring, which `undying` refuses.
                            "--innodb-use-native-aio=0", "--secure-file-priv=" + self.folder,
                            "--lc-messages-dir=/usr/share/mysql", "--plugin-dir=/usr/lib/mysql/plugin")

    def words(self, *words):
        return ["mariadb", "--no-defaults", "-h", "127.0.0.1", "-P", str(self.port), "-u", "root", "--protocol=tcp",
                "--connect-timeout=10", *words]

    def is_ready(self):
        return subprocess.run(self.words("-e", "SELECT 1"), capture_output=True, stdin=subprocess.DEVNULL).returncode == 0

    def open(self):
        self.connection = Shell(self.words("--unbuffered", "--skip-column-names", "--batch", "--skip-reconnect"))
        self.ask("CREATE DATABASE IF NOT EXISTS field; USE field; CREATE TABLE IF NOT EXISTS item "
                 "(number BIGINT PRIMARY KEY, text VARCHAR(300), KEY by_text (text)) ENGINE=InnoDB;")

    def ask(self, statement):
        return self.connection.ask(statement)

    def put(self, number):
        if self.ask("INSERT INTO item VALUES (%d, REPEAT('%d ', 40));" % (number, number * 7919 % 10007)):
            raise Wrong("the reply to INSERT contains text")

    def items(self):
        return [int(line) for line in self.ask("SELECT number FROM item FORCE INDEX (PRIMARY) ORDER BY number;")]

    def own_check(self):
        said = self.ask("CHECK TABLE item EXTENDED;")
        if not said or not said[-1].endswith("OK"):
            raise Wrong("CHECK TABLE EXTENDED: %s" % " / ".join(said))
        counts = self.ask("SELECT COUNT(*) FROM item FORCE INDEX (PRIMARY); SELECT COUNT(*) FROM item FORCE INDEX (by_text);")
        if len(set(counts)) != 1:
            raise Wrong("the numbers of rows differ between the indexes: %s" % counts)

    def check_files(self):
        # The system tablespace is not checked: its doublewrite pages have no checksum, also after a normal shutdown.
        for path in glob.glob(self.path("data", "field", "*.ibd")):
            self.tool("innochecksum", path)


class Shell:
    """The client program `mariadb`, which reads statements from a pipe. It exits after an error."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, bufsize=1, env=os.environ)

    def ask(self, statement):
        """Executes a statement, and returns the lines of the reply."""
        self.process.stdin.write(statement + " SELECT 'field-end';\n")
        self.process.stdin.flush()
        lines = []
        while True:
            line = self.process.stdout.readline()
            if not line:
                said = " ".join(lines)
                # 2002 to 2013: the connection is lost. 1053: the server shuts down. 1927: the connection was killed.
                if any(number in said for number in ("ERROR 20", "ERROR 1053", "ERROR 1927")) or not said:
                    raise EOFError("the client ended: " + said)
                raise Wrong("the client ended: " + said)
            if line.strip() == "field-end":
                return lines
            lines.append(line.strip())

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # The client has already exited.
            pass
