/* Proves that alternate signal stacks are restored: the stack of the main thread, and the stack of
 * a thread with SS_AUTODISARM. A third stack is in use: during the checkpoint, its thread is in a
 * handler, and it returns from the handler later. */
#include "victim.h"

#include <sys/mman.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif
#define STACK_BYTES 65536

static unsigned char *stacks[3];
static volatile int phase; /* 0 before ready, 1 running, 2 finish */
static volatile int inside, handled, inside_rounds;
static pthread_t disarming, occupied;
static __thread volatile uintptr_t frame;

static bool within(uintptr_t address, int stack)
{
	uintptr_t start = (uintptr_t)stacks[stack];
	return address >= start && address < start + STACK_BYTES;
}

static void short_handler(int signal)
{
	volatile char local = (char)signal;
	frame = (uintptr_t)&local;
	__atomic_add_fetch(&handled, 1, __ATOMIC_SEQ_CST);
}

static void set_stack(int stack, int flags)
{
	stack_t wanted = { .ss_sp = stacks[stack], .ss_flags = flags, .ss_size = STACK_BYTES };
	must(sigaltstack(&wanted, NULL));
}

static void check_stack(int stack, int flags)
{
	stack_t now;
	must(sigaltstack(NULL, &now));
	check(now.ss_sp == stacks[stack] && now.ss_size == STACK_BYTES, "alternate stack %d is at %p, %zu bytes", stack,
	      now.ss_sp, now.ss_size);
	check(now.ss_flags == flags, "alternate stack %d has flags %#x, want %#x", stack, (unsigned)now.ss_flags,
	      (unsigned)flags);
}

/* Stays on stack 2 until finish. */
static void long_handler(int signal)
{
	volatile char local = (char)signal;
	check(within((uintptr_t)&local, 2), "the long handler is not on its stack");
	inside = 1;
	while (phase < 2) {
		check_stack(2, SS_ONSTACK);
		inside_rounds++;
		victim_nap(VICTIM_NAP_US);
	}
	check(within((uintptr_t)&local, 2), "the long handler has left its stack");
}

static void raise_here(int signal, int stack)
{
	sigset_t set;
	frame = 0;
	sigemptyset(&set);
	sigaddset(&set, signal);
	must_zero(pthread_sigmask(SIG_UNBLOCK, &set, NULL));
	must_zero(pthread_kill(pthread_self(), signal));
	check(within(frame, stack), "the handler ran at %#lx, not on stack %d", (unsigned long)frame, stack);
}

static void *disarming_body(void *unused)
{
	(void)unused;
	set_stack(1, (int)SS_AUTODISARM);
	while (phase < 2) {
		check_stack(1, (int)SS_AUTODISARM);
		raise_here(SIGUSR1, 1);
		victim_nap(VICTIM_NAP_US);
	}
	return NULL;
}

static void *occupied_body(void *unused)
{
	sigset_t set;
	(void)unused;
	set_stack(2, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	must_zero(pthread_sigmask(SIG_UNBLOCK, &set, NULL));
	must_zero(pthread_kill(pthread_self(), SIGUSR2));
	check(phase == 2, "the long handler came back too early");
	check_stack(2, 0);
	return NULL;
}

static void setup(void)
{
	struct sigaction shortly = { .sa_handler = short_handler, .sa_flags = SA_ONSTACK };
	struct sigaction lastingly = { .sa_handler = long_handler, .sa_flags = SA_ONSTACK };
	for (int i = 0; i < 3; i++) {
		stacks[i] = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		check(stacks[i] != MAP_FAILED, "mmap: %m");
	}
	must(sigaction(SIGUSR1, &shortly, NULL));
	must(sigaction(SIGUSR2, &lastingly, NULL));
	set_stack(0, 0);
	disarming = victim_thread(disarming_body, NULL);
	occupied = victim_thread(occupied_body, NULL);
	victim_await(inside && handled > 0, "the threads do not start");
	phase = 1;
}

static void verify(void)
{
	check_stack(0, 0);
	raise_here(SIGUSR1, 0);
}

static void sabotage(void)
{
	set_stack(1, 0);
}

static void finish(void)
{
	int rounds = inside_rounds, before = handled;
	victim_await(inside_rounds > rounds + 2, "the thread inside its handler stands still");
	victim_await(handled > before + 2, "the thread with SS_AUTODISARM stands still");
	phase = 2;
	must_zero(pthread_join(disarming, NULL));
	must_zero(pthread_join(occupied, NULL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
