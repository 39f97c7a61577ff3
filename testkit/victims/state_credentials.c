/* Proves that credentials are restored: real, effective, saved and file system ids, supplementary
 * groups, all five capability sets, and the securebits. Without root, the victim does not change
 * its ids, and only checks that they stay the same. */
#include "victim.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>

#define KEPT_CAPABILITIES ((1ull << CAP_KILL) | (1ull << CAP_NET_BIND_SERVICE) | (1ull << CAP_SETUID))
#define GROUPS 3

struct credentials {
	uid_t uid[3], fs_uid;
	gid_t gid[3], fs_gid;
	gid_t groups[GROUPS + 64];
	int group_count;
	struct __user_cap_data_struct sets[2];
	int securebits;
	unsigned char bounding[CAP_LAST_CAP + 1], ambient[CAP_LAST_CAP + 1];
};

static struct credentials expected;

static void read_credentials(struct credentials *now)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	memset(now, 0, sizeof(*now));
	must(getresuid(&now->uid[0], &now->uid[1], &now->uid[2]));
	must(getresgid(&now->gid[0], &now->gid[1], &now->gid[2]));
	now->fs_uid = (uid_t)setfsuid((uid_t)-1);
	now->fs_gid = (gid_t)setfsgid((gid_t)-1);
	now->group_count = must(getgroups(GROUPS + 64, now->groups));
	must(syscall(SYS_capget, &header, now->sets));
	now->securebits = must(prctl(PR_GET_SECUREBITS));
	for (int i = 0; i <= CAP_LAST_CAP; i++) {
		now->bounding[i] = (unsigned char)must(prctl(PR_CAPBSET_READ, i));
		now->ambient[i] = (unsigned char)must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0));
	}
}

static void set_capabilities(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2] = { 0 };
	sets[0].permitted = (uint32_t)KEPT_CAPABILITIES;
	sets[0].effective = 1u << CAP_KILL;
	sets[0].inheritable = 1u << CAP_NET_BIND_SERVICE;
	must(syscall(SYS_capset, &header, sets));
	must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0));
}

static void become_somebody(void)
{
	gid_t groups[GROUPS] = { 2001, 2002, 70000 };
	must(prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT));
	must(prctl(PR_CAPBSET_DROP, CAP_AUDIT_WRITE));
	must(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS | SECBIT_NOROOT));
	must(setgroups(GROUPS, groups));
	must(setresgid(1101, 1102, 1103));
	setfsgid(1104);
	must(setresuid(1001, 1002, 1003));
	setfsuid(1004);
	set_capabilities();
}

static void setup(void)
{
	if (geteuid() == 0)
		become_somebody();
	read_credentials(&expected);
	if (getuid() == 1001)
		check(expected.fs_uid == 1004 && expected.fs_gid == 1104, "cannot set the file system ids");
}

static void verify(void)
{
	struct credentials now;
	read_credentials(&now);
	check(memcmp(now.uid, expected.uid, sizeof(now.uid)) == 0, "uids are %u %u %u", now.uid[0], now.uid[1], now.uid[2]);
	check(memcmp(now.gid, expected.gid, sizeof(now.gid)) == 0, "gids are %u %u %u", now.gid[0], now.gid[1], now.gid[2]);
	check(now.fs_uid == expected.fs_uid && now.fs_gid == expected.fs_gid, "file system ids are %u, %u", now.fs_uid,
	      now.fs_gid);
	check(now.group_count == expected.group_count && memcmp(now.groups, expected.groups, sizeof(now.groups)) == 0,
	      "groups changed");
	for (int i = 0; i < 2; i++) {
		check(now.sets[i].permitted == expected.sets[i].permitted, "permitted[%d] is %#x", i, now.sets[i].permitted);
		check(now.sets[i].effective == expected.sets[i].effective, "effective[%d] is %#x", i, now.sets[i].effective);
		check(now.sets[i].inheritable == expected.sets[i].inheritable, "inheritable[%d] is %#x", i,
		      now.sets[i].inheritable);
	}
	check(now.securebits == expected.securebits, "securebits are %#x", (unsigned)now.securebits);
	for (int i = 0; i <= CAP_LAST_CAP; i++) {
		check(now.bounding[i] == expected.bounding[i], "capability %d of the bounding set changed", i);
		check(now.ambient[i] == expected.ambient[i], "capability %d of the ambient set changed", i);
	}
}

static void sabotage(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };
	if (getuid() != 1001)
		victim_fail("without root there is nothing to damage");
	must(syscall(SYS_capset, &header, none));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
