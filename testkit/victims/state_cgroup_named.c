/* Proves that a control group in a hierarchy without controllers is restored if it no longer
 * exists: modes, owners and settings, the empty groups below it, and a descriptor of its directory. */
#include "victim_cgroup.h"

#define OWNER 1234

static char hierarchy[256], membership[PATH_MAX], inner[PATH_MAX + 128];
static int directory;

static void setup(void)
{
	char path[PATH_MAX + 256];
	umask(022);
	victim_cgroup_find(hierarchy);
	victim_cgroup_make();
	victim_cgroup_of(hierarchy, membership);
	must(chmod(victim_cgroup, 0750));
	must(chown(victim_cgroup, OWNER, OWNER));
	must(victim_cgroup_write(victim_cgroup, "notify_on_release", "1"));
	snprintf(path, sizeof(path), "%s/cgroup.procs", victim_cgroup);
	must(chown(path, OWNER, OWNER));
	must(chmod(path, 0600));
	snprintf(inner, sizeof(inner), "%s/inner", victim_cgroup);
	must(mkdir(inner, 0700));
	must(victim_cgroup_write(inner, "notify_on_release", "0"));
	snprintf(path, sizeof(path), "%s/innermost", inner);
	must(mkdir(path, 0711));
	directory = must(open(inner, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

static void check_access(const char *path, const char *file, mode_t mode, uid_t owner)
{
	char whole[PATH_MAX + 256];
	struct stat status;
	snprintf(whole, sizeof(whole), "%s/%s", path, file);
	must(stat(whole, &status));
	check((status.st_mode & 07777) == mode, "mode of %s is %o, was %o", whole, status.st_mode & 07777, mode);
	check(status.st_uid == owner && status.st_gid == owner, "owner of %s is %u", whole, status.st_uid);
}

static void check_setting(const char *path, char wanted)
{
	char file[PATH_MAX + 256], text[16];
	snprintf(file, sizeof(file), "%s/notify_on_release", path);
	victim_cgroup_read(file, text, sizeof(text));
	check(text[0] == wanted, "%s is %c, was %c", file, text[0], wanted);
}

static void verify(void)
{
	char now[PATH_MAX];
	struct stat by_name, by_descriptor;
	victim_cgroup_of(hierarchy, now);
	check(strcmp(now, membership) == 0, "the group is %s, was %s", now, membership);
	check_access(victim_cgroup, ".", 0750, OWNER);
	check_access(victim_cgroup, "cgroup.procs", 0600, OWNER);
	check_access(victim_cgroup, "tasks", 0644, 0);
	check_access(inner, ".", 0700, 0);
	check_access(inner, "innermost", 0711, 0);
	check_setting(victim_cgroup, '1');
	check_setting(inner, '0');
	must(stat(inner, &by_name));
	must(fstat(directory, &by_descriptor));
	check(by_name.st_ino == by_descriptor.st_ino, "the descriptor is of another directory");
}

static const struct victim victim = { setup, NULL, verify, victim_cgroup_leave, victim_cgroup_leave, false };
VICTIM_MAIN(victim)
