/* Has a BPF program. */
#include "victim.h"

#include <linux/bpf.h>

static int program;

static void setup(void)
{
	struct bpf_insn code[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = { .prog_type = BPF_PROG_TYPE_SOCKET_FILTER,
				.insns = (uintptr_t)code,
				.insn_cnt = sizeof(code) / sizeof(code[0]),
				.license = (uintptr_t) "MIT" };
	program = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load));
	if (program < 0)
		victim_unsupported("bpf: %m");
}

static void verify(void)
{
	struct bpf_prog_info info = { 0 };
	union bpf_attr query = { .info.bpf_fd = (uint32_t)program, .info.info_len = sizeof(info), .info.info = (uintptr_t)&info };
	must(syscall(SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &query, sizeof(query)));
	check(info.type == BPF_PROG_TYPE_SOCKET_FILTER, "a program of type %u", info.type);
}

static void sabotage(void)
{
	close(program);
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
