/* Has a POSIX message queue open, with an unread message. */
#include "victim.h"

#include <mqueue.h>

#define TEXT "waiting"

static mqd_t queue;
static char name[64];

static void setup(void)
{
	struct mq_attr attributes = { .mq_maxmsg = 4, .mq_msgsize = 64 };
	snprintf(name, sizeof(name), "/undying-victim-%d", getpid());
	queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600, &attributes);
	if (queue < 0)
		victim_unsupported("mq_open: %m");
	/* The queue needs no name, and without a name it leaves nothing behind. */
	must(mq_unlink(name));
	must(mq_send(queue, TEXT, sizeof(TEXT), 3));
}

static void verify(void)
{
	struct mq_attr now;
	must(mq_getattr(queue, &now));
	check(now.mq_curmsgs == 1, "the queue has %ld messages", now.mq_curmsgs);
}

static void sabotage(void)
{
	char text[64];
	must(mq_receive(queue, text, sizeof(text), NULL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
