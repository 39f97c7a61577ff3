/* Proves that a controlling terminal is restored: its session, its foreground group, and /dev/tty.
 * Ctrl-C from the other end reaches only the foreground process. */
#include "victim.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

static int master, slave;
static pid_t leader, foreground;
static volatile sig_atomic_t interrupts;

static void on_interrupt(int signal)
{
	(void)signal;
	interrupts++;
}

static void check_terminal(void)
{
	check(tcgetsid(slave) == getsid(0), "terminal belongs to session %d", tcgetsid(slave));
	int terminal = must(open("/dev/tty", O_RDWR | O_CLOEXEC));
	must(tcgetpgrp(terminal));
	close(terminal);
}

/* The foreground process writes one byte to the terminal when it has received Ctrl-C. */
static void foreground_work(void)
{
	check_terminal();
	check(tcgetpgrp(slave) == getpgrp(), "foreground group is %d", tcgetpgrp(slave));
	if (interrupts > 0) {
		check(write(slave, "!", 1) == 1, "write: %m");
		interrupts = 0;
	}
}

static void leader_work(void)
{
	check_terminal();
	check(interrupts == 0, "Ctrl-C reached the background");
	check(tcgetpgrp(slave) == foreground, "foreground group is %d, was %d", tcgetpgrp(slave), foreground);
}

static void leader_end(void)
{
	if (victim_sabotaged)
		must(tcsetpgrp(slave, getpgrp()));
	leader_work();
	victim_end_child(foreground);
}

static void lead(struct victim_gate gate)
{
	struct victim_gate inner = victim_gate_make();
	signal(SIGTTOU, SIG_IGN);
	signal(SIGINT, on_interrupt);
	must(setsid());
	must(ioctl(slave, TIOCSCTTY, 0));
	close(master);
	foreground = victim_fork();
	if (foreground == 0) {
		must(setpgid(0, 0));
		must(tcsetpgrp(slave, getpid()));
		victim_gate_open(inner);
		victim_child(foreground_work, foreground_work);
	}
	victim_gate_wait(inner);
	check(write(gate.ends[1], &foreground, sizeof(foreground)) == sizeof(foreground), "write: %m");
	close(gate.ends[0]);
	close(gate.ends[1]);
	victim_child(leader_work, leader_end);
}

static void setup(void)
{
	char path[64];
	struct termios modes;
	struct victim_gate gate = victim_gate_make();
	master = must(posix_openpt(O_RDWR | O_NOCTTY));
	must(grantpt(master));
	must(unlockpt(master));
	check(ptsname_r(master, path, sizeof(path)) == 0, "no name");
	slave = must(open(path, O_RDWR | O_NOCTTY));
	must(tcgetattr(slave, &modes));
	modes.c_lflag = (modes.c_lflag & ~(tcflag_t)(ECHO | ICANON)) | ISIG;
	modes.c_oflag &= ~(tcflag_t)OPOST;
	must(tcsetattr(slave, TCSANOW, &modes));
	leader = victim_fork();
	if (leader == 0)
		lead(gate);
	close(gate.ends[1]);
	check(read(gate.ends[0], &foreground, sizeof(foreground)) == sizeof(foreground), "the session did not start");
	close(gate.ends[0]);
}

static void verify(void)
{
	pid_t session = 0, group = 0;
	must(ioctl(master, TIOCGSID, &session));
	check(session == leader, "session of the terminal is %d, was %d", session, leader);
	must(ioctl(master, TIOCGPGRP, &group));
	check(group == foreground, "foreground group is %d, was %d", group, foreground);
	must_fail_with(open("/dev/tty", O_RDWR), ENXIO);
}

static void finish(void)
{
	struct pollfd wait = { .fd = master, .events = POLLIN };
	char byte = 0;
	check(write(master, "\x03", 1) == 1, "write: %m");
	check(poll(&wait, 1, 10000) == 1 && read(master, &byte, 1) == 1 && byte == '!', "Ctrl-C does not arrive");
	victim_end_child(leader);
}

static void sabotage(void)
{
	/* The session leader causes the damage: see leader_end. */
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
