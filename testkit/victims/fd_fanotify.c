/* Has fanotify groups: one with a mark on a directory, one with a mark on a mount and an ignore mask on a
 * file. The events of both are checked. */
#include "victim.h"

#include <sys/fanotify.h>

static int group, of_mount;
static char directory[PATH_MAX], ignored[PATH_MAX], other[PATH_MAX];

static void touch(const char *path)
{
	int file = must(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	check(write(file, "x", 1) == 1, "write: %m");
	close(file);
}

static void setup(void)
{
	must(mkdir(victim_path(directory, "marked"), 0755));
	victim_path(ignored, "marked/ignored");
	victim_path(other, "marked/other");
	group = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC);
	if (group < 0)
		victim_unsupported("fanotify_init: %m");
	touch(ignored);
	must(fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY | FAN_EVENT_ON_CHILD, AT_FDCWD, directory));
	must(fanotify_mark(group, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_MODIFY,
			   AT_FDCWD, ignored));
	of_mount = must(fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC));
	must(fanotify_mark(of_mount, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_CLOSE_WRITE, AT_FDCWD, "/proc"));
}

static void verify(void)
{
	struct fanotify_event_metadata event;
	must_fail_with(read(group, &event, sizeof(event)), EAGAIN);
}

static void sabotage(void)
{
	must(fanotify_mark(group, FAN_MARK_FLUSH, 0, AT_FDCWD, NULL));
}

/* Other processes write to files of /proc, too. If such a process has ended, its event cannot be read. */
static void await_own_event_of_mount(void)
{
	struct fanotify_event_metadata event = { 0 };
	while (event.pid != getpid()) {
		ssize_t length = read(of_mount, &event, sizeof(event));
		if (length == (ssize_t)sizeof(event)) {
			close(event.fd);
		} else {
			check(length < 0 && errno == ESRCH, "no event of the mount: %m");
		}
	}
	check(event.mask & FAN_CLOSE_WRITE, "another event of the mount");
}

static void finish(void)
{
	struct fanotify_event_metadata event;
	touch(ignored);
	must_fail_with(read(group, &event, sizeof(event)), EAGAIN);
	touch(other);
	check(read(group, &event, sizeof(event)) == sizeof(event) && (event.mask & FAN_MODIFY), "no event: %m");
	close(event.fd);
	close(must(open("/proc/self/comm", O_WRONLY | O_CLOEXEC)));
	await_own_event_of_mount();
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
