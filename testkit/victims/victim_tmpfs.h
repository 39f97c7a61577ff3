/* Files in the tmpfs on /dev/shm, for the victims that use such files. */
#ifndef UNDYING_VICTIM_TMPFS_H
#define UNDYING_VICTIM_TMPFS_H

#include "victim_file.h"

#include <dirent.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#define VICTIM_TMPFS "/dev/shm"
#define VICTIM_TMPFS_PREFIX "undying-victim-"

/* Removes the files of earlier victims that were killed. */
static inline void victim_tmpfs_sweep(void)
{
	DIR *directory = opendir(VICTIM_TMPFS);
	struct dirent *entry;
	int pid;
	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		const char *name = entry->d_name;
		if (strncmp(name, "sem.", 4) == 0)
			name += 4;
		if (sscanf(name, VICTIM_TMPFS_PREFIX "%d-", &pid) == 1 && kill(pid, 0) != 0 && errno == ESRCH)
			unlinkat(dirfd(directory), entry->d_name, 0);
	}
	if (directory != NULL)
		closedir(directory);
}

/* Ends the victim as unsupported if /dev/shm is not a tmpfs. Otherwise removes old files. */
static inline void victim_tmpfs_need(void)
{
	struct statfs system;
	if (statfs(VICTIM_TMPFS, &system) != 0 || system.f_type != TMPFS_MAGIC)
		victim_unsupported("no tmpfs on " VICTIM_TMPFS);
	victim_tmpfs_sweep();
}

/* Writes the path of a tmpfs file of this victim to `buffer`, and returns `buffer`. */
static inline const char *victim_tmpfs_path(char buffer[PATH_MAX], const char *name)
{
	snprintf(buffer, PATH_MAX, VICTIM_TMPFS "/" VICTIM_TMPFS_PREFIX "%d-%s", (int)getpid(), name);
	return buffer;
}

#endif
