/* Has a fanotify group with a mark. */
#include "victim.h"

#include <sys/fanotify.h>

static int group;
static char directory[PATH_MAX];

static void setup(void)
{
	must(mkdir(victim_path(directory, "marked"), 0755));
	group = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC);
	if (group < 0)
		victim_unsupported("fanotify_init: %m");
	must(fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY | FAN_EVENT_ON_CHILD, AT_FDCWD, directory));
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

static void finish(void)
{
	struct fanotify_event_metadata event;
	char path[PATH_MAX + 8];
	snprintf(path, sizeof(path), "%s/file", directory);
	int file = must(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	check(write(file, "x", 1) == 1, "write: %m");
	close(file);
	check(read(group, &event, sizeof(event)) == sizeof(event) && (event.mask & FAN_MODIFY), "no event: %m");
	close(event.fd);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
