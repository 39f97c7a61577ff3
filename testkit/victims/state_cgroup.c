/* Proves that the membership in a control group is restored. The group belongs to the victim, in
 * the unified hierarchy. The process that takes the checkpoint is in another group. */
#include "victim.h"

static char home[PATH_MAX], group[PATH_MAX + 64], membership[PATH_MAX];

static void read_text(const char *path, char *text, size_t size)
{
	int fd = must(open(path, O_RDONLY | O_CLOEXEC));
	size_t used = 0;
	ssize_t more;
	while (used < size - 1 && (more = must(read(fd, text + used, size - 1 - used))) > 0)
		used += (size_t)more;
	text[used] = '\0';
	close(fd);
}

/* Reads the line of the unified hierarchy, without the prefix `0::`. */
static void read_membership(char *path)
{
	char text[8192];
	read_text("/proc/self/cgroup", text, sizeof(text));
	char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
	if (line == NULL)
		victim_unsupported("no unified hierarchy of control groups");
	line = strstr(line, "0::") + 3;
	snprintf(path, PATH_MAX, "%.*s", (int)strcspn(line, "\n"), line);
}

static void find_home(void)
{
	char path[PATH_MAX], text[65536], *save = NULL, root[PATH_MAX], point[PATH_MAX];
	read_membership(path);
	read_text("/proc/self/mountinfo", text, sizeof(text));
	for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		if (strstr(line, " - cgroup2 ") == NULL || sscanf(line, "%*d %*d %*s %4095s %4095s", root, point) != 2)
			continue;
		if (strcmp(root, "/") != 0)
			continue;
		check(snprintf(home, sizeof(home), "%s%s", point, path) < (int)sizeof(home), "the path is too long");
		return;
	}
	victim_unsupported("the unified hierarchy is not mounted");
}

static int enter(const char *directory)
{
	char file[PATH_MAX + 128];
	snprintf(file, sizeof(file), "%s/cgroup.procs", directory);
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t done = write(fd, "0", 1);
	close(fd);
	return done == 1 ? 0 : -1;
}

static void setup(void)
{
	find_home();
	snprintf(group, sizeof(group), "%s/victim-%d", home, (int)getpid());
	if (mkdir(group, 0755) != 0)
		victim_unsupported("control groups cannot be made: %m");
	if (enter(group) != 0) {
		int error = errno;
		rmdir(group);
		victim_unsupported("a control group cannot be entered: %s", strerror(error));
	}
	read_membership(membership);
	check(strstr(membership, "/victim-") != NULL, "the group is %s", membership);
}

static void leave_group(void)
{
	if (enter(home) == 0)
		rmdir(group);
}

static void verify(void)
{
	char now[PATH_MAX];
	read_membership(now);
	if (strcmp(now, membership) != 0)
		leave_group();
	check(strcmp(now, membership) == 0, "the group is %s, was %s", now, membership);
}

static void sabotage(void)
{
	must(enter(home));
}

static const struct victim victim = { setup, NULL, verify, sabotage, leave_group, false };
VICTIM_MAIN(victim)
