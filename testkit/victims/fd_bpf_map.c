/* Has two BPF maps: a hash with a read-only descriptor, in which each round changes an entry, and a frozen
 * array. */
#include "victim.h"

#include <linux/bpf.h>

#define VALUE 0x1234567812345678u
#define ENTRIES 8u

static int hash, hash_reader, array;
static uint64_t rounds;

static long call(int command, union bpf_attr *attributes)
{
	return syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

static int make(uint32_t type, const char *name, uint32_t flags)
{
	union bpf_attr create = {
		.map_type = type, .key_size = 4, .value_size = 8, .max_entries = ENTRIES, .map_flags = flags
	};
	strcpy(create.map_name, name);
	int made = (int)call(BPF_MAP_CREATE, &create);
	if (made < 0)
		victim_unsupported("bpf: %m");
	return made;
}

static long set(int map, uint32_t key, uint64_t value)
{
	union bpf_attr update = { .map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
	return call(BPF_MAP_UPDATE_ELEM, &update);
}

static uint64_t get(int map, uint32_t key)
{
	uint64_t value = 0;
	union bpf_attr lookup = { .map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
	must(call(BPF_MAP_LOOKUP_ELEM, &lookup));
	return value;
}

static struct bpf_map_info info_of(int map)
{
	struct bpf_map_info info = { 0 };
	union bpf_attr query = { .info.bpf_fd = (uint32_t)map, .info.info_len = sizeof(info), .info.info = (uintptr_t)&info };
	must(call(BPF_OBJ_GET_INFO_BY_FD, &query));
	return info;
}

static void setup(void)
{
	hash = make(BPF_MAP_TYPE_HASH, "victim_hash", BPF_F_NO_PREALLOC);
	array = make(BPF_MAP_TYPE_ARRAY, "victim_array", 0);
	for (uint32_t key = 0; key < ENTRIES - 1; key++) {
		must(set(hash, 1000 + key, VALUE + key));
		must(set(array, key, VALUE - key));
	}
	union bpf_attr freeze = { .map_fd = (uint32_t)array };
	must(call(BPF_MAP_FREEZE, &freeze));
	union bpf_attr open = { .map_id = info_of(hash).id, .open_flags = BPF_F_RDONLY };
	hash_reader = (int)call(BPF_MAP_GET_FD_BY_ID, &open);
	if (hash_reader < 0)
		victim_unsupported("a second descriptor of a map: %m");
}

static void work(void)
{
	must(set(hash, 1, ++rounds));
}

static void verify(void)
{
	struct bpf_map_info info = info_of(hash);
	check(info.type == BPF_MAP_TYPE_HASH && info.max_entries == ENTRIES && info.map_flags == BPF_F_NO_PREALLOC &&
		      strcmp(info.name, "victim_hash") == 0,
	      "another map: type %u, name %s", info.type, info.name);
	check(info_of(hash_reader).id == info.id, "two maps");
	for (uint32_t key = 0; key < ENTRIES - 1; key++) {
		check(get(hash_reader, 1000 + key) == VALUE + key, "another value in the hash");
		check(get(array, key) == VALUE - key, "another value in the array");
	}
	check(get(array, ENTRIES - 1) == 0, "a value that was not set");
	if (rounds > 0)
		check(get(hash, 1) == rounds, "the value of another round");
	must_fail_with(set(hash_reader, 1000, 1), EPERM);
	must_fail_with(set(array, 0, 1), EPERM);
}

static void sabotage(void)
{
	must(set(hash, 1002, 1));
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
