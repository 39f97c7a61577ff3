/* Proves that a pseudo terminal of the program is restored: the connection of both ends, termios,
 * window size, packet mode, bytes queued in both directions, and a whole line queued in canonical
 * mode. The number in /dev/pts may differ after a restore, but both ends must have the same number. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/ioctl.h>
#include <termios.h>

#define QUEUED_BYTES 200

struct terminal {
	int master, slave;
	struct termios modes;
	struct winsize size;
};

static struct terminal raw, lines;
static struct victim_stream down = { .name = "to slave", .seed = 1 };
static struct victim_stream up = { .name = "to master", .seed = 2 };
static const char waiting[] = "a line that waits\n";

static void open_terminal(struct terminal *terminal, unsigned short rows)
{
	char path[64];
	terminal->master = must(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
	must(grantpt(terminal->master));
	must(unlockpt(terminal->master));
	must(ptsname_r(terminal->master, path, sizeof(path)) == 0 ? 0 : -1);
	terminal->slave = must(open(path, O_RDWR | O_NOCTTY));
	terminal->size = (struct winsize){ rows, (unsigned short)(rows * 3), 7, 9 };
	must(ioctl(terminal->slave, TIOCSWINSZ, &terminal->size));
	must(tcgetattr(terminal->slave, &terminal->modes));
}

static void apply_modes(struct terminal *terminal)
{
	must(tcsetattr(terminal->slave, TCSANOW, &terminal->modes));
	must(tcgetattr(terminal->slave, &terminal->modes));
}

static void setup(void)
{
	int on = 1;
	open_terminal(&raw, 31);
	cfmakeraw(&raw.modes);
	raw.modes.c_cc[VMIN] = 1;
	raw.modes.c_cc[VEOF] = 26;
	must(cfsetspeed(&raw.modes, B9600));
	apply_modes(&raw);
	open_terminal(&lines, 57);
	lines.modes.c_lflag &= ~(tcflag_t)(ECHO | ISIG);
	lines.modes.c_lflag |= ICANON;
	lines.modes.c_cc[VERASE] = 'q' & 31;
	apply_modes(&lines);
	must(ioctl(lines.master, TIOCPKT, &on));
	check(write(lines.master, waiting, strlen(waiting)) == (ssize_t)strlen(waiting), "write: %m");
	down.out = up.in = raw.master;
	down.in = up.out = raw.slave;
	victim_stream_send(&down, QUEUED_BYTES);
	victim_stream_send(&up, QUEUED_BYTES);
}

static void work(void)
{
	victim_stream_turn(&down, 1 + (size_t)(victim_ticks % 100));
	victim_stream_turn(&up, 1 + (size_t)(victim_ticks % 130));
}

static void check_terminal(const char *name, const struct terminal *terminal)
{
	struct termios modes;
	struct winsize size;
	struct stat held, named;
	char path[64];
	int locked = -1;
	must(tcgetattr(terminal->slave, &modes));
	check(modes.c_iflag == terminal->modes.c_iflag && modes.c_oflag == terminal->modes.c_oflag &&
		      modes.c_cflag == terminal->modes.c_cflag && modes.c_lflag == terminal->modes.c_lflag,
	      "%s: modes changed", name);
	check(memcmp(modes.c_cc, terminal->modes.c_cc, NCCS) == 0, "%s: control characters changed", name);
	check(cfgetospeed(&modes) == cfgetospeed(&terminal->modes), "%s: speed changed", name);
	must(ioctl(terminal->master, TIOCGWINSZ, &size));
	check(memcmp(&size, &terminal->size, sizeof(size)) == 0, "%s: window is %ux%u", name, size.ws_row, size.ws_col);
	must(ioctl(terminal->master, TIOCGPTLCK, &locked));
	check(locked == 0, "%s: is locked", name);
	check(ptsname_r(terminal->master, path, sizeof(path)) == 0, "%s: has no name", name);
	must(stat(path, &named));
	must(fstat(terminal->slave, &held));
	check(held.st_rdev == named.st_rdev, "%s: the ends do not belong together", name);
	check(fcntl(terminal->master, F_GETFD) == FD_CLOEXEC && fcntl(terminal->slave, F_GETFD) == 0,
	      "%s: close-on-exec changed", name);
}

static void verify(void)
{
	int packet = -1;
	check_terminal("raw", &raw);
	check_terminal("lines", &lines);
	must(ioctl(raw.master, TIOCGPKT, &packet));
	check(packet == 0, "raw: packet mode is on");
	must(ioctl(lines.master, TIOCGPKT, &packet));
	check(packet == 1, "lines: packet mode is off");
}

static void sabotage(void)
{
	raw.size.ws_row++;
	must(ioctl(raw.slave, TIOCSWINSZ, &raw.size));
	raw.size.ws_row--;
}

static void finish(void)
{
	char line[128] = "";
	victim_stream_drain(&down);
	victim_stream_drain(&up);
	victim_stream_must_be_empty(&down);
	victim_stream_must_be_empty(&up);
	victim_wait_readable(lines.slave, "lines");
	check(read(lines.slave, line, sizeof(line)) == (ssize_t)strlen(waiting) && strcmp(line, waiting) == 0,
	      "the queued line is [%s]", line);
	check(write(lines.slave, "ok", 2) == 2, "write to slave: %m");
	victim_wait_readable(lines.master, "lines master");
	check(read(lines.master, line, sizeof(line)) == 3 && line[0] == TIOCPKT_DATA && line[1] == 'o',
	      "packet mode does not mark its data");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
