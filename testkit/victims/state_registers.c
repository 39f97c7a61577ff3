/* Proves that registers are restored bit by bit: general purpose registers, the carry and direction
 * flags, FS base and GS base. The other tested registers are x87 (stack, control and status word),
 * MXCSR, SSE, AVX and AVX-512 with its masks, if the processor has them. The values are only in
 * registers, during loops without system calls. */
#include "victim.h"

#if !defined(__x86_64__)
#error "this victim knows x86-64 only"
#endif

#include <asm/prctl.h>

#define SPINS 400000
#define GENERAL 15
#define FLAG_CARRY 0x001u
#define FLAG_DIRECTION 0x400u
#define CONTROL_WORD 0x0a7f /* round up, double precision, all exceptions masked */
#define MXCSR_WORD 0xffbf   /* round to zero, flush to zero, denormals are zero, all flags but one set */
#define X87_BYTES 10
#define ALIGNED __attribute__((aligned(64)))

struct vectors {
	ALIGNED unsigned char wide[32 * 64];
	ALIGNED unsigned char x87[8 * 16];
	uint16_t masks[8];
	uint32_t mxcsr;
	uint16_t control, status;
};

extern void spin_general(const uint64_t in[GENERAL], uint64_t out[GENERAL + 1]);
extern void spin_sse(const struct vectors *in, struct vectors *out, long spins);
extern void spin_avx(const struct vectors *in, struct vectors *out, long spins);
extern void spin_avx512(const struct vectors *in, struct vectors *out, long spins);
__attribute__((visibility("hidden"))) volatile long spin_left;
__attribute__((visibility("hidden"))) uint64_t spin_scratch;

/* Loads known values into all general registers except rsp. The loop counter is in memory. */
asm(".text\n"
    "spin_general:\n"
    "  push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rsi\n"
    "  mov 0(%rdi), %rax;  mov 8(%rdi), %rbx;   mov 16(%rdi), %rcx; mov 24(%rdi), %rdx\n"
    "  mov 32(%rdi), %rsi; mov 40(%rdi), %rbp;  mov 48(%rdi), %r8;  mov 56(%rdi), %r9\n"
    "  mov 64(%rdi), %r10; mov 72(%rdi), %r11;  mov 80(%rdi), %r12; mov 88(%rdi), %r13\n"
    "  mov 96(%rdi), %r14; mov 104(%rdi), %r15; mov 112(%rdi), %rdi\n"
    "  std; stc\n"
    "1: decq spin_left(%rip)\n"
    "  jnz 1b\n"
    "  mov %rdi, spin_scratch(%rip)\n"
    "  mov (%rsp), %rdi\n"
    "  mov %rax, 0(%rdi);  mov %rbx, 8(%rdi);   mov %rcx, 16(%rdi); mov %rdx, 24(%rdi)\n"
    "  mov %rsi, 32(%rdi); mov %rbp, 40(%rdi);  mov %r8, 48(%rdi);  mov %r9, 56(%rdi)\n"
    "  mov %r10, 64(%rdi); mov %r11, 72(%rdi);  mov %r12, 80(%rdi); mov %r13, 88(%rdi)\n"
    "  mov %r14, 96(%rdi); mov %r15, 104(%rdi)\n"
    "  mov spin_scratch(%rip), %rax\n"
    "  mov %rax, 112(%rdi)\n"
    "  pushfq; pop %rax\n"
    "  mov %rax, 120(%rdi)\n"
    "  cld\n"
    "  pop %rsi; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
    "  ret\n");

/* The x87 code is the same for every vector width. The assertions below check the offsets. */
#define LOAD_X87                                                              \
	"  fninit; fldcw 2196(%rdi)\n"                                        \
	"  .irp n,0,1,2,3,4,5,6,7; fldt 2048+16*\\n(%rdi); .endr\n"           \
	"  ldmxcsr 2192(%rdi)\n"
#define SPIN                    \
	"1: dec %rdx\n"         \
	"  jnz 1b\n"
#define STORE_X87                                                             \
	"  stmxcsr 2192(%rsi); fnstcw 2196(%rsi); fnstsw 2198(%rsi)\n"        \
	"  .irp n,7,6,5,4,3,2,1,0; fstpt 2048+16*\\n(%rsi); .endr\n"          \
	"  fninit; ldmxcsr (%rsp)\n"
#define SIXTEEN "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define THIRTY_TWO SIXTEEN ",16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"

asm(".text\n"
    "spin_sse:\n  push %rax; stmxcsr (%rsp)\n" LOAD_X87
    "  .irp n," SIXTEEN "; movdqu 64*\\n(%rdi), %xmm\\n; .endr\n" SPIN
    "  .irp n," SIXTEEN "; movdqu %xmm\\n, 64*\\n(%rsi); .endr\n" STORE_X87 "  pop %rax; ret\n"
    "spin_avx:\n  push %rax; stmxcsr (%rsp)\n" LOAD_X87
    "  .irp n," SIXTEEN "; vmovdqu 64*\\n(%rdi), %ymm\\n; .endr\n" SPIN
    "  .irp n," SIXTEEN "; vmovdqu %ymm\\n, 64*\\n(%rsi); .endr\n  vzeroupper\n" STORE_X87 "  pop %rax; ret\n"
    "spin_avx512:\n  push %rax; stmxcsr (%rsp)\n" LOAD_X87
    "  .irp n," THIRTY_TWO "; vmovdqu64 64*\\n(%rdi), %zmm\\n; .endr\n"
    "  .irp n,0,1,2,3,4,5,6,7; kmovw 2176+2*\\n(%rdi), %k\\n; .endr\n" SPIN
    "  .irp n,0,1,2,3,4,5,6,7; kmovw %k\\n, 2176+2*\\n(%rsi); .endr\n"
    "  .irp n," THIRTY_TWO "; vmovdqu64 %zmm\\n, 64*\\n(%rsi); .endr\n  vzeroupper\n" STORE_X87
    "  pop %rax; ret\n");

_Static_assert(offsetof(struct vectors, x87) == 2048, "the assembly knows this offset");
_Static_assert(offsetof(struct vectors, masks) == 2176, "the assembly knows this offset");
_Static_assert(offsetof(struct vectors, mxcsr) == 2192, "the assembly knows this offset");
_Static_assert(offsetof(struct vectors, control) == 2196, "the assembly knows this offset");
_Static_assert(offsetof(struct vectors, status) == 2198, "the assembly knows this offset");

struct width {
	const char *name;
	void (*spin)(const struct vectors *in, struct vectors *out, long spins);
	int registers, bytes;
	bool masks;
};

static struct width widths[3] = { { "SSE", spin_sse, 16, 16, false } };
static int width_count = 1;
static uint64_t gs_words[2] = { 0x6a6b6c6d6e6f7071u, 0x1111 };
static void *thread_pointer;
static uint64_t damage;

static void round_general(void)
{
	uint64_t in[GENERAL], out[GENERAL + 1];
	for (int i = 0; i < GENERAL; i++)
		in[i] = victim_mix(victim_ticks * GENERAL + (uint64_t)i);
	in[7] ^= damage;
	spin_left = SPINS / 4;
	spin_general(in, out);
	in[7] ^= damage;
	for (int i = 0; i < GENERAL; i++)
		check(in[i] == out[i], "general register %d is %#llx, was %#llx", i, (unsigned long long)out[i],
		      (unsigned long long)in[i]);
	check((out[GENERAL] & (FLAG_CARRY | FLAG_DIRECTION)) == (FLAG_CARRY | FLAG_DIRECTION), "flags are %#llx",
	      (unsigned long long)out[GENERAL]);
}

/* Fills the x87 slots with normal 80-bit numbers, and all other fields with arbitrary values. */
static void fill(struct vectors *in)
{
	memset(in, 0, sizeof(*in));
	victim_fill(in->wide, sizeof(in->wide), victim_ticks + 1);
	for (int i = 0; i < 8; i++) {
		uint64_t mantissa = victim_mix(victim_ticks + (uint64_t)i) | 1ull << 63;
		uint16_t exponent = (uint16_t)(16383 + i * 3);
		memcpy(in->x87 + 16 * i, &mantissa, 8);
		memcpy(in->x87 + 16 * i + 8, &exponent, 2);
		in->masks[i] = (uint16_t)victim_mix(victim_ticks * 8 + (uint64_t)i);
	}
	in->mxcsr = MXCSR_WORD;
	in->control = CONTROL_WORD;
}

static void round_vectors(const struct width *width)
{
	static struct vectors in, out;
	fill(&in);
	memset(&out, 0, sizeof(out));
	width->spin(&in, &out, SPINS);
	for (int i = 0; i < width->registers; i++)
		check(memcmp(in.wide + 64 * i, out.wide + 64 * i, (size_t)width->bytes) == 0, "%s: register %d changed",
		      width->name, i);
	for (int i = 0; i < 8; i++) {
		check(memcmp(in.x87 + 16 * i, out.x87 + 16 * i, X87_BYTES) == 0, "%s: x87 register %d changed", width->name, i);
		check(!width->masks || in.masks[i] == out.masks[i], "%s: mask %d is %#x, was %#x", width->name, i,
		      out.masks[i], in.masks[i]);
	}
	check(out.mxcsr == in.mxcsr, "%s: MXCSR is %#x, was %#x", width->name, out.mxcsr, in.mxcsr);
	check(out.control == in.control, "%s: control word is %#x, was %#x", width->name, out.control, in.control);
	check((out.status & 0x3800) == 0, "%s: top of the x87 stack is %u", width->name, out.status >> 11 & 7);
}

static void check_bases(void)
{
	uint64_t word;
	unsigned long base = 0;
	asm volatile("movq %%gs:0, %0" : "=r"(word));
	must(syscall(SYS_arch_prctl, ARCH_GET_GS, &base));
	check(base == (unsigned long)gs_words && word == gs_words[0], "GS base is %#lx, was %p", base, (void *)gs_words);
	check(__builtin_thread_pointer() == thread_pointer, "FS base changed");
}

static void work(void)
{
	round_general();
	for (int i = 0; i < width_count; i++)
		round_vectors(&widths[i]);
}

static void setup(void)
{
	must(syscall(SYS_arch_prctl, ARCH_SET_GS, gs_words));
	thread_pointer = __builtin_thread_pointer();
	if (__builtin_cpu_supports("avx"))
		widths[width_count++] = (struct width){ "AVX", spin_avx, 16, 32, false };
	if (__builtin_cpu_supports("avx512f"))
		widths[width_count++] = (struct width){ "AVX-512", spin_avx512, 32, 64, true };
}

static void verify(void)
{
	check_bases();
	work();
}

static void sabotage(void)
{
	damage = 1;
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, true };
VICTIM_MAIN(victim)
