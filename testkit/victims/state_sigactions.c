/* Proves that signal actions are restored: handlers, SIG_IGN, SIG_DFL, flags and masks, for
 * standard and real-time signals. Each raised signal has the effect of its action. */
#include "victim.h"

struct action {
	int signal;
	int flags;
	int blocked; /* a signal in the handler's mask, or 0 */
	char kind;   /* 'h' handler, 'i' siginfo handler, 'I' ignored */
};

static const struct action actions[] = {
	{ SIGHUP, SA_RESTART, SIGUSR1, 'h' },       { SIGINT, SA_NODEFER, 0, 'h' },
	{ SIGUSR1, SA_SIGINFO, SIGUSR2, 'i' },      { SIGUSR2, SA_SIGINFO | SA_ONSTACK | SA_RESTART, SIGHUP, 'i' },
	{ SIGPIPE, 0, 0, 'I' },                     { SIGCHLD, SA_NOCLDSTOP | SA_NOCLDWAIT, SIGALRM, 'h' },
	{ SIGALRM, SA_RESETHAND, 0, 'h' },          { SIGWINCH, SA_SIGINFO | SA_NODEFER, SIGINT, 'i' },
	{ SIGTTIN, 0, 0, 'I' },
};
#define ACTIONS (sizeof(actions) / sizeof(actions[0]))

static volatile sig_atomic_t seen[NSIG];
static volatile sig_atomic_t last_value;

static void plain_handler(int signal)
{
	seen[signal]++;
}

static void info_handler(int signal, siginfo_t *info, void *context)
{
	(void)context;
	seen[signal]++;
	last_value = info->si_code == SI_QUEUE ? info->si_value.sival_int : -1;
}

static struct sigaction build(const struct action *action)
{
	struct sigaction built = { .sa_flags = action->flags };
	sigemptyset(&built.sa_mask);
	if (action->blocked != 0)
		sigaddset(&built.sa_mask, action->blocked);
	if (action->kind == 'i')
		built.sa_sigaction = info_handler;
	else
		built.sa_handler = action->kind == 'I' ? SIG_IGN : plain_handler;
	return built;
}

static void setup(void)
{
	for (size_t i = 0; i < ACTIONS; i++) {
		struct sigaction built = build(&actions[i]);
		must(sigaction(actions[i].signal, &built, NULL));
	}
	for (int signal = SIGRTMIN + 2; signal < SIGRTMIN + 8; signal++) {
		struct action queued = { signal, SA_SIGINFO, signal + 1, 'i' };
		struct sigaction built = build(&queued);
		must(sigaction(signal, &built, NULL));
	}
}

static void work(void)
{
	int before = seen[SIGUSR1];
	must(sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = (int)(victim_ticks % 1000) }));
	check(seen[SIGUSR1] == before + 1 && last_value == (int)(victim_ticks % 1000), "SIGUSR1 was handled wrongly");
}

static void check_action(const struct action *action)
{
	struct sigaction now, want = build(action);
	const int flags = SA_NOCLDSTOP | SA_NOCLDWAIT | SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER;
	must(sigaction(action->signal, NULL, &now));
	check(now.sa_sigaction == want.sa_sigaction, "signal %d has another handler", action->signal);
	check((now.sa_flags & (flags | (int)SA_RESETHAND)) == action->flags, "signal %d has flags %#x", action->signal,
	      (unsigned)now.sa_flags);
	for (int signal = 1; signal < NSIG; signal++)
		check(sigismember(&now.sa_mask, signal) == sigismember(&want.sa_mask, signal), "mask of signal %d changed",
		      action->signal);
}

static void verify(void)
{
	for (size_t i = 0; i < ACTIONS; i++)
		check_action(&actions[i]);
	for (int signal = SIGRTMIN + 2; signal < SIGRTMIN + 8; signal++) {
		struct action queued = { signal, SA_SIGINFO, signal + 1, 'i' };
		check_action(&queued);
	}
	struct sigaction now;
	must(sigaction(SIGQUIT, NULL, &now));
	check(now.sa_handler == SIG_DFL, "SIGQUIT has a handler");
	work();
}

static void sabotage(void)
{
	signal(SIGTTIN, SIG_DFL);
}

static void finish(void)
{
	struct sigaction now;
	for (size_t i = 0; i < ACTIONS; i++) {
		int signal = actions[i].signal, before = seen[signal];
		must(kill(getpid(), signal));
		check(seen[signal] == before + (actions[i].kind != 'I'), "signal %d was handled wrongly", signal);
	}
	must(sigaction(SIGALRM, NULL, &now));
	check(now.sa_handler == SIG_DFL, "SA_RESETHAND did not reset");
	must(sigqueue(getpid(), SIGRTMIN + 5, (union sigval){ .sival_int = 4242 }));
	check(seen[SIGRTMIN + 5] == 1 && last_value == 4242, "a real-time signal was handled wrongly");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
