"""Desktop programs: an X server with a terminal or a GTK window, a terminal multiplexer, and a message bus."""
import os
import subprocess

from lib.program import Job, Service, Wrong, wait_for

LINES = r'''
step=1 value=1
while [ $step -le $FIELD_STEPS ]; do
    value=$(((value * 1021 + step) % 1000003)); echo "$step $value" | tee /dev/tty; step=$((step + 1)); sleep $FIELD_STEP_S
done >"$FIELD_OUT"
'''


class Xterm(Job):
    """Xvfb, and xterm with a shell. The shell also writes its lines to the terminal."""

    name, group = "xvfb-xterm", "desktop"
    needs = {"Xvfb": "xvfb", "xterm": "xterm", "xwininfo": "x11-utils"}
    source, source_name = LINES, "lines.sh"
    # With -displayfd, the X server chooses a free display, and writes its number to the descriptor.
    launcher = r'''
exec 3>"$1/display"; Xvfb -displayfd 3 -screen 0 640x480x8 -nolisten tcp & server=$!; exec 3>&-
until [ -s "$1/display" ]; do sleep 0.05; done
DISPLAY=:$(cat "$1/display"); export DISPLAY
xterm -title field -e sh "$1/lines.sh"; status=$?
kill $server; wait $server; exit $status
'''

    def program(self):
        return ["sh", "-c", self.launcher, "desktop", self.folder]


class Gtk(Xterm):
    """A GTK window with a progress bar. A shell writes its lines, and sends the progress through a pipe."""

    name = "xvfb-gtk"
    needs = {"Xvfb": "xvfb", "zenity": "zenity"}
    source = LINES.replace("| tee /dev/tty;", ">&4; echo $((step * 99 / FIELD_STEPS));").replace(
        'done >"$FIELD_OUT"', 'done 4>"$FIELD_OUT"')
    launcher = Xterm.launcher.replace('xterm -title field -e sh "$1/lines.sh"',
                                      'sh "$1/lines.sh" | zenity --progress --auto-close --title field')

    def environment(self):
        return {**super().environment(), "NO_AT_BRIDGE": "1", "GSETTINGS_BACKEND": "memory", "HOME": self.folder,
                "GTK_A11Y": "none", "DBUS_SESSION_BUS_ADDRESS": "unix:path=" + self.path("no-bus")}


class Tmux(Service):
    """A tmux server with a shell in a window. Each item is an environment variable of the server."""

    name, group = "tmux", "desktop"
    needs = {"tmux": "tmux"}
    burst, pace_s = 30, 0.02

    def prepare(self):
        self.write("tmux.conf", "new-session -d -s field -x 80 -y 24 sh\n")

    def command(self):
        # With -D, the server stays in the foreground. It reads the configuration when the first client connects.
        return ["tmux", "-D", "-S", self.path("sock"), "-f", self.path("tmux.conf")]

    def open(self):
        """Does nothing: each request starts a client."""

    def send(self, *words):
        done = subprocess.run(["tmux", "-S", self.path("sock"), "-N", *words], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise OSError(done.stderr)
        return done.stdout

    def is_ready(self):
        return os.path.exists(self.path("sock")) and "field" in self.send("list-sessions")

    def put(self, number):
        self.send("set-environment", "-g", "item%d" % number, "x")

    def items(self):
        said = self.send("show-environment", "-g")
        return [int(line[4:].split("=")[0]) for line in said.splitlines() if line.startswith("item")]

    def own_check(self):
        """Checks that the shell in the window executes a command."""
        word = "answer%d" % self.random.randrange(10 ** 9)
        self.send("send-keys", "-t", "field", "echo %s-$((40 + 2))" % word, "Enter")
        wait_for(lambda: "%s-42" % word in self.send("capture-pane", "-p", "-t", "field"), "output of the shell", 10)


class Dbus(Service):
    """A session bus. For each item, a client requests a name, which the bus releases when the client exits."""

    name, group = "dbus-daemon", "desktop"
    needs = {"dbus-daemon": "dbus-daemon", "dbus-send": "dbus-bin"}
    burst, pace_s = 15, 0.02
    configuration = '''<busconfig><type>session</type><listen>unix:path={folder}/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>'''

    def prepare(self):
        self.write("bus.conf", self.configuration.format(folder=self.folder))

    def command(self):
        return ["dbus-daemon", "--nofork", "--config-file=" + self.path("bus.conf")]

    def open(self):
        """Does nothing: each message starts a client."""

    def send(self, method, *words):
        done = subprocess.run(["dbus-send", "--bus=unix:path=" + self.path("bus"), "--print-reply=literal",
                               "--reply-timeout=5000", "--dest=org.freedesktop.DBus", "/org/freedesktop/DBus",
                               "org.freedesktop.DBus." + method, *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(done.stderr)
        return done.stdout

    def is_ready(self):
        return os.path.exists(self.path("bus")) and "org.freedesktop.DBus" in self.send("ListNames")

    def put(self, number):
        if "uint32 1" not in self.send("RequestName", "string:field.item%d" % number, "uint32:0"):
            raise Wrong("the name of item %d was not granted" % number)

    def items(self):
        if "array" not in self.send("ListNames"):
            raise Wrong("ListNames returns no list")
        return sorted(self.acknowledged)
