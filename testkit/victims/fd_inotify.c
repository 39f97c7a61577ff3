/* Proves that inotify instances are restored: watch descriptors (with a gap), masks and watched
 * inodes. The event queue is empty at the checkpoint and must stay empty. This detects a restore
 * that causes events. */
#include "victim.h"

#include <sys/inotify.h>

#define EVENTS (IN_CREATE | IN_DELETE | IN_MODIFY | IN_MOVED_TO)

static int watcher, on_directory, on_file;
static char directory[PATH_MAX], file[PATH_MAX], moved[PATH_MAX];

static void touch(const char *path)
{
	int fd = must(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
	check(write(fd, "x", 1) == 1, "write: %m");
	close(fd);
}

static void expect(int watch, uint32_t mask, const char *name)
{
	char buffer[sizeof(struct inotify_event) + NAME_MAX + 1] __attribute__((aligned(8)));
	ssize_t got = read(watcher, buffer, sizeof(struct inotify_event) + 16);
	const struct inotify_event *event = (const struct inotify_event *)buffer;
	check(got >= (ssize_t)sizeof(*event), "no event of watch %d, want %#x: %m", watch, mask);
	check(event->wd == watch && event->mask == mask, "watch %d, mask %#x; want %d, %#x", event->wd, event->mask,
	      watch, mask);
	check(strcmp(event->len > 0 ? event->name : "", name) == 0, "event names %s", event->name);
}

static void expect_silence(void)
{
	char buffer[512];
	must_fail_with(read(watcher, buffer, sizeof(buffer)), EAGAIN);
}

static void setup(void)
{
	char path[PATH_MAX];
	must(mkdir(victim_path(directory, "watched"), 0755));
	must(mkdir(victim_path(path, "other"), 0755));
	touch(victim_path(file, "file"));
	watcher = must(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
	int gone = must(inotify_add_watch(watcher, path, IN_ALL_EVENTS));
	on_directory = must(inotify_add_watch(watcher, directory, EVENTS));
	must(inotify_rm_watch(watcher, gone));
	expect(gone, IN_IGNORED, "");
	on_file = must(inotify_add_watch(watcher, file, IN_MODIFY));
	/* A watch belongs to the inode, so it must survive that the file is renamed. */
	must(rename(file, victim_path(moved, "renamed")));
}

static void work(void)
{
	expect_silence();
}

static void verify(void)
{
	char path[PATH_MAX + 16];
	check(fcntl(watcher, F_GETFD) == FD_CLOEXEC && (fcntl(watcher, F_GETFL) & O_NONBLOCK) != 0, "flags changed");
	expect_silence();
	snprintf(path, sizeof(path), "%s/new", directory);
	touch(path);
	expect(on_directory, IN_CREATE, "new");
	expect(on_directory, IN_MODIFY, "new");
	touch(moved);
	expect(on_file, IN_MODIFY, "");
	must(unlink(path));
	expect(on_directory, IN_DELETE, "new");
	expect_silence();
}

static void sabotage(void)
{
	must(inotify_add_watch(watcher, moved, IN_ATTRIB));
}

/* A watch for a watched inode returns the existing watch descriptor. A watch for another inode
 * returns a new one. */
static void finish(void)
{
	char path[PATH_MAX];
	check(inotify_add_watch(watcher, directory, EVENTS) == on_directory, "the directory has another watch");
	must_fail_with(inotify_rm_watch(watcher, on_directory - 1), EINVAL);
	int fresh = must(inotify_add_watch(watcher, victim_path(path, "other"), IN_CREATE));
	check(fresh != on_directory && fresh != on_file, "number %d is given twice", fresh);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
