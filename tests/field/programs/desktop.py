"""Desktop: an X server with a terminal, a terminal multiplexer, a message bus, a GTK window."""
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
    """Xvfb, and xterm with a shell in it, which writes the lines to the terminal too."""

    name, group = "xvfb-xterm", "desktop"
    needs = {"Xvfb": "xvfb", "xterm": "xterm", "xwininfo": "x11-utils"}
    source, source_name = LINES, "lines.sh"
    # -displayfd has the server choose a display that is free.
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
    """A GTK window with a bar, fed through a pipe by a shell that writes the lines."""

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
    """A tmux server with a shell in a window: one variable of the server an item, and keys sent to the shell."""

    name, group = "tmux", "desktop"
    needs = {"tmux": "tmux"}
    burst, pace_s = 30, 0.02

    def prepare(self):
        self.write("tmux.conf", "new-session -d -s field -x 80 -y 24 sh\n")

    def command(self):
        # -D keeps the server in the foreground; its first client has it read the configuration.
        return ["tmux", "-D", "-S", self.path("sock"), "-f", self.path("tmux.conf")]

    def open(self):
        """Each request has a client of its own."""

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
        """The shell in the window answers."""
        word = "answer%d" % self.random.randrange(10 ** 9)
        self.send("send-keys", "-t", "field", "echo %s-$((40 + 2))" % word, "Enter")
        wait_for(lambda: "%s-42" % word in self.send("capture-pane", "-p", "-t", "field"), "the shell's answer", 10)


class Dbus(Service):
    """A session bus: one name an item is requested, and released again."""

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
        """Each message has a client of its own."""

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
            raise Wrong("ListNames gives no list")
        return sorted(self.acknowledged)
