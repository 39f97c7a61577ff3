/* Memory areas with known content, and their description by the kernel, for the victims of the
 * memory group. An area is one mapping. Each area has an unmapped gap on both sides, so that the
 * kernel never merges it with another mapping. */
#ifndef UNDYING_VICTIM_MEMORY_H
#define UNDYING_VICTIM_MEMORY_H

#include "victim.h"

#include <sys/mman.h>

#define VICTIM_PAGE 4096u
#define VICTIM_DESCRIPTION_MAX 512

struct victim_area {
	const char *name;
	unsigned char *at;
	size_t length;
	uint64_t seed;
	char description[VICTIM_DESCRIPTION_MAX];
};

/* Finds an address range of `length` bytes with an unmapped page before and after it. */
static inline unsigned char *victim_place(size_t length)
{
	unsigned char *hole = mmap(NULL, length + 2 * VICTIM_PAGE, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	check(hole != MAP_FAILED, "cannot reserve %zu bytes: %m", length);
	must(munmap(hole, length + 2 * VICTIM_PAGE));
	return hole + VICTIM_PAGE;
}

static inline unsigned char *victim_map(size_t length, int protection, int flags, int fd, off_t offset)
{
	unsigned char *wanted = victim_place(length);
	unsigned char *at = mmap(wanted, length, protection, flags | MAP_FIXED_NOREPLACE, fd, offset);
	check(at == wanted, "mmap of %zu bytes at %p: %m", length, (void *)wanted);
	return at;
}

/* Reports whether a flag of smaps must stay the same. The flags of dirty tracking and of memory
 * accounting may change. */
static inline bool victim_flag_is_ours(const char *flag)
{
	static const char *const ignored[] = { "sd", "uw", "um", "ui", "ac" };
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		if (strncmp(flag, ignored[i], 2) == 0)
			return false;
	return true;
}

static inline void victim_append_flags(char *text, const char *flags)
{
	size_t used = strlen(text);
	for (const char *flag = flags; flag[0] > ' ' && flag[1] > ' '; flag += 3) {
		if (victim_flag_is_ours(flag) && used + 4 < VICTIM_DESCRIPTION_MAX) {
			text[used++] = ' ';
			text[used++] = flag[0];
			text[used++] = flag[1];
		}
		if (flag[2] == 0)
			break;
	}
	text[used] = 0;
}

/* Writes a line with the borders, protection, offset, file and flags of the mapping at `address` to
 * `text`. Device and inode of a file without a name (memfd, deleted, shared anonymous) are left
 * out, because a restore may create another inode. */
static inline void victim_describe(const void *address, char text[VICTIM_DESCRIPTION_MAX])
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	char *line = NULL;
	size_t capacity = 0;
	bool inside = false, found = false;
	check(smaps != NULL, "cannot open smaps: %m");
	text[0] = 0;
	while (getline(&line, &capacity, smaps) > 0) {
		unsigned long start, end, offset, inode;
		char protection[5], device[16];
		if (sscanf(line, "%lx-%lx %4s %lx %15s %lu", &start, &end, protection, &offset, device, &inode) == 6) {
			inside = start <= (uintptr_t)address && (uintptr_t)address < end;
			if (inside) {
				bool nameless = inode == 0 || strstr(line, "(deleted)") != NULL;
				snprintf(text, VICTIM_DESCRIPTION_MAX, "%lx-%lx %s %lx %s %lu", start, end, protection,
					 offset, nameless ? "-" : device, nameless ? 0 : inode);
				found = true;
			}
		} else if (inside && strncmp(line, "VmFlags: ", 9) == 0) {
			victim_append_flags(text, line + 9);
		}
	}
	free(line);
	fclose(smaps);
	check(found, "nothing is mapped at %p", address);
}

/* Returns a number from /proc/self/status. The unit is KiB if the kernel prints kB. */
static inline unsigned long victim_status_number(const char *key)
{
	FILE *status = fopen("/proc/self/status", "re");
	char line[256];
	unsigned long value = 0;
	bool found = false;
	check(status != NULL, "cannot open status: %m");
	while (!found && fgets(line, sizeof(line), status) != NULL) {
		size_t length = strlen(key);
		if (strncmp(line, key, length) == 0 && line[length] == ':') {
			value = strtoul(line + length + 1, NULL, 10);
			found = true;
		}
	}
	fclose(status);
	check(found, "no %s in status", key);
	return value;
}

static inline void victim_area_remember(struct victim_area *area)
{
	victim_describe(area->at, area->description);
}

static inline void victim_area_check_description(const struct victim_area *area)
{
	char now[VICTIM_DESCRIPTION_MAX];
	victim_describe(area->at, now);
	check(strcmp(now, area->description) == 0, "%s: area is [%s], was [%s]", area->name, now, area->description);
}

static inline void victim_area_check_content(const struct victim_area *area)
{
	ssize_t wrong = victim_differs(area->at, area->length, area->seed);
	check(wrong < 0, "%s: byte at offset %zd is wrong", area->name, wrong);
}

static inline void victim_check_zero(const char *name, const unsigned char *at, size_t length)
{
	for (size_t i = 0; i < length; i++)
		check(at[i] == 0, "%s: byte at offset %zu is %u, must be zero", name, i, at[i]);
}

#endif
