/* Has a BPF map. */
#include "victim.h"

#include <linux/bpf.h>

#define KEY 3u
#define VALUE 0x1234567812345678u

static int map;

static void setup(void)
{
	union bpf_attr create = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 8 };
	uint32_t key = KEY;
	uint64_t value = VALUE;
	map = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &create, sizeof(create));
	if (map < 0)
		victim_unsupported("bpf: %m");
	union bpf_attr update = { .map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
	must(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &update, sizeof(update)));
}

static void verify(void)
{
	uint32_t key = KEY;
	uint64_t value = 0;
	union bpf_attr lookup = { .map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
	must(syscall(SYS_bpf, BPF_MAP_LOOKUP_ELEM, &lookup, sizeof(lookup)));
	check(value == VALUE, "the map holds %#llx", (unsigned long long)value);
}

static void sabotage(void)
{
	close(map);
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
