/* A control group of the victim, in a hierarchy without controllers. */
#ifndef UNDYING_VICTIM_CGROUP_H
#define UNDYING_VICTIM_CGROUP_H

#include "victim.h"

#include <dirent.h>

static char victim_cgroup_home[PATH_MAX], victim_cgroup[PATH_MAX + 64];

/* Writes a text to a file of a group. Returns -1 and sets errno on failure. */
static inline int victim_cgroup_write(const char *directory, const char *file, const char *text)
{
	char path[PATH_MAX + 512];
	snprintf(path, sizeof(path), "%s/%s", directory, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t done = write(fd, text, strlen(text));
	int error = errno;
	close(fd);
	errno = error;
	return done == (ssize_t)strlen(text) ? 0 : -1;
}

/* Reads a file of at most `size` - 1 bytes, and adds a null byte. */
static inline void victim_cgroup_read(const char *path, char *text, size_t size)
{
	int fd = must(open(path, O_RDONLY | O_CLOEXEC));
	size_t used = 0;
	ssize_t more;
	while (used < size - 1 && (more = must(read(fd, text + used, size - 1 - used))) > 0)
		used += (size_t)more;
	text[used] = '\0';
	close(fd);
}

/* Writes the path of this process's group in the named hierarchy to `path`. */
static inline void victim_cgroup_of(const char *hierarchy, char path[PATH_MAX])
{
	char text[8192], wanted[256 + 2];
	victim_cgroup_read("/proc/self/cgroup", text, sizeof(text));
	snprintf(wanted, sizeof(wanted), ":%s:", hierarchy);
	char *line = strstr(text, wanted);
	check(line != NULL, "no group of %s in [%s]", hierarchy, text);
	line += strlen(wanted);
	snprintf(path, PATH_MAX, "%.*s", (int)strcspn(line, "\n"), line);
}

/* Finds a hierarchy without controllers that is mounted from its root. Writes its name to
 * `hierarchy`. */
static inline void victim_cgroup_find(char hierarchy[256])
{
	char text[65536], *save = NULL, root[PATH_MAX], point[PATH_MAX];
	victim_cgroup_read("/proc/self/mountinfo", text, sizeof(text));
	for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		char *options = strstr(line, " - cgroup ");
		if (options == NULL || sscanf(line, "%*d %*d %*s %4095s %4095s", root, point) != 2)
			continue;
		char *name = strstr(options, ",name=");
		if (strcmp(root, "/") != 0 || name == NULL)
			continue;
		snprintf(hierarchy, 256, "%.*s", (int)strcspn(name + 1, ", \n"), name + 1);
		victim_cgroup_of(hierarchy, root);
		int used = snprintf(victim_cgroup_home, sizeof(victim_cgroup_home), "%s%s", point, root);
		check(used < (int)sizeof(victim_cgroup_home), "the path of the group is too long");
		return;
	}
	victim_unsupported("no hierarchy of control groups without controllers is mounted");
}

/* Creates a group below the current group of this process, and moves the process to the new group. */
static inline void victim_cgroup_make(void)
{
	snprintf(victim_cgroup, sizeof(victim_cgroup), "%s/victim-%d", victim_cgroup_home, (int)getpid());
	if (mkdir(victim_cgroup, 0755) != 0)
		victim_unsupported("control groups cannot be made: %m");
	if (victim_cgroup_write(victim_cgroup, "tasks", "0") != 0) {
		int error = errno;
		rmdir(victim_cgroup);
		victim_unsupported("a control group cannot be entered: %s", strerror(error));
	}
}

/* Removes a group and all groups below it. */
static inline void victim_cgroup_remove(int above, const char *name)
{
	struct dirent *entry;
	DIR *directory = fdopendir(openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		if (entry->d_type == DT_DIR && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			victim_cgroup_remove(dirfd(directory), entry->d_name);
	}
	if (directory != NULL)
		closedir(directory);
	unlinkat(above, name, AT_REMOVEDIR);
}

/* Moves the process back to its original group, and removes the victim's group. */
static inline void victim_cgroup_leave(void)
{
	if (victim_cgroup_write(victim_cgroup_home, "tasks", "0") == 0)
		victim_cgroup_remove(AT_FDCWD, victim_cgroup);
}

#endif
