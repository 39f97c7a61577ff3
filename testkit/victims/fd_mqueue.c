/* Has POSIX message queues: one with a name and unread messages, which it also has open write-only, and
 * an empty one without a name. */
#include "victim.h"

#include <mqueue.h>

#define LOW "low"
#define HIGH "high"

static mqd_t named, writer, nameless;
static char name[64];

static mqd_t make(long messages)
{
	struct mq_attr attributes = { .mq_maxmsg = messages, .mq_msgsize = 64 };
	mqd_t queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NONBLOCK, 0640, &attributes);
	if (queue < 0)
		victim_unsupported("mq_open: %m");
	return queue;
}

static void setup(void)
{
	snprintf(name, sizeof(name), "/undying-victim-%d", getpid());
	nameless = make(3);
	must(mq_unlink(name));
	named = make(4);
	writer = must(mq_open(name, O_WRONLY | O_CLOEXEC));
	must(mq_send(writer, LOW, sizeof(LOW), 1));
	must(mq_send(named, HIGH, sizeof(HIGH), 9));
}

static void check_attributes(mqd_t queue, long flags, long messages_max, long messages)
{
	struct mq_attr now;
	must(mq_getattr(queue, &now));
	check(now.mq_maxmsg == messages_max && now.mq_msgsize == 64, "queue of %ld", now.mq_maxmsg);
	check(now.mq_curmsgs == messages, "the queue has %ld messages", now.mq_curmsgs);
	check(now.mq_flags == flags, "the queue has the flags %lx", now.mq_flags);
}

static void work(void)
{
	char text[64];
	must(mq_send(nameless, LOW, sizeof(LOW), 3));
	check(mq_receive(nameless, text, sizeof(text), NULL) == sizeof(LOW), "receive: %m");
}

static void verify(void)
{
	struct stat status;
	check_attributes(named, O_NONBLOCK, 4, 2);
	check_attributes(writer, 0, 4, 2);
	check_attributes(nameless, O_NONBLOCK, 3, 0);
	must(fstat(nameless, &status));
	check((status.st_mode & 0777) == 0640, "the mode is %o", status.st_mode);
	must_fail_with(mq_receive(writer, (char[64]){ 0 }, 64, NULL), EBADF);
}

static void sabotage(void)
{
	must(mq_receive(named, (char[64]){ 0 }, 64, NULL));
	mq_unlink(name);
}

static void expect(const char *text, unsigned int priority)
{
	char found[64];
	unsigned int found_priority;
	must(mq_receive(named, found, sizeof(found), &found_priority));
	check(strcmp(found, text) == 0 && found_priority == priority, "received %s with %u", found, found_priority);
}

static void finish(void)
{
	mqd_t again = must(mq_open(name, O_RDONLY | O_CLOEXEC));
	mq_close(again);
	expect(HIGH, 9);
	expect(LOW, 1);
	must_fail_with(mq_receive(named, (char[64]){ 0 }, 64, NULL), EAGAIN);
	mq_unlink(name);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
