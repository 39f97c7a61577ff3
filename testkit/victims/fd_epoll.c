/* Proves that epoll sets are restored: members, event masks and 64-bit data. The cases are: an
 * edge-triggered member, a one-shot member that has fired and stays silent until EPOLL_CTL_MOD, and
 * an epoll set in another set. */
#include "victim.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#define LEVEL_DATA 0x1122334455667788u
#define EDGE_DATA 0xa1a2a3a4a5a6a7a8u
#define ONE_SHOT_DATA 0xffffffff00000001u
#define INNER_DATA 7u
#define DEEP_DATA 0xdeadu

static int outer, inner, level, edge, one_shot, deep;

static void add(int set, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };
	must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

/* Polls one set without blocking. Returns whether `data` was among the events, and stores the
 * number of events. */
static bool fired(int set, uint64_t data, int *count)
{
	struct epoll_event events[8];
	bool found = false;
	*count = must(epoll_wait(set, events, 8, 0));
	for (int i = 0; i < *count; i++)
		found = found || events[i].data.u64 == data;
	return found;
}

static void put(int fd)
{
	uint64_t one = 1;
	check(write(fd, &one, sizeof(one)) == sizeof(one), "eventfd write: %m");
}

static void take(int fd)
{
	uint64_t value;
	check(read(fd, &value, sizeof(value)) == sizeof(value), "eventfd read: %m");
}

static void setup(void)
{
	int count;
	outer = must(epoll_create1(EPOLL_CLOEXEC));
	inner = must(epoll_create1(0));
	level = must(eventfd(1, EFD_NONBLOCK));
	edge = must(eventfd(0, EFD_NONBLOCK));
	one_shot = must(eventfd(1, EFD_NONBLOCK));
	deep = must(eventfd(0, EFD_NONBLOCK));
	add(outer, level, EPOLLIN, LEVEL_DATA);
	add(outer, edge, EPOLLIN | EPOLLET, EDGE_DATA);
	add(outer, one_shot, EPOLLIN | EPOLLONESHOT, ONE_SHOT_DATA);
	add(outer, inner, EPOLLIN, INNER_DATA);
	add(inner, deep, EPOLLIN | EPOLLRDHUP, DEEP_DATA);
	check(fired(outer, ONE_SHOT_DATA, &count), "a fresh one-shot member is silent");
}

static void work(void)
{
	int count;
	check(fired(outer, LEVEL_DATA, &count), "a ready level-triggered member is silent");
	check(!fired(outer, ONE_SHOT_DATA, &count), "a spent one-shot member fires");
	put(edge);
	check(fired(outer, EDGE_DATA, &count), "an edge is lost");
	take(edge);
	check(!fired(inner, DEEP_DATA, &count), "an idle inner member fires");
	put(deep);
	check(fired(outer, INNER_DATA, &count), "the inner set does not wake the outer one");
	check(fired(inner, DEEP_DATA, &count) && count == 1, "the inner member is silent");
	take(deep);
}

static void verify(void)
{
	check(fcntl(outer, F_GETFD) == FD_CLOEXEC && fcntl(inner, F_GETFD) == 0, "close-on-exec changed");
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0 };
	must_fail_with(epoll_ctl(outer, EPOLL_CTL_ADD, level, &event), EEXIST);
	must_fail_with(epoll_ctl(outer, EPOLL_CTL_ADD, edge, &event), EEXIST);
	must_fail_with(epoll_ctl(outer, EPOLL_CTL_ADD, one_shot, &event), EEXIST);
	must_fail_with(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event), EEXIST);
	must_fail_with(epoll_ctl(inner, EPOLL_CTL_ADD, deep, &event), EEXIST);
	must_fail_with(epoll_ctl(outer, EPOLL_CTL_MOD, deep, &event), ENOENT);
	work();
}

static void sabotage(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = LEVEL_DATA + 1 };
	must(epoll_ctl(outer, EPOLL_CTL_MOD, level, &event));
}

/* Rearms the one-shot member, which then fires exactly once. */
static void finish(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = ONE_SHOT_DATA };
	int count;
	must(epoll_ctl(outer, EPOLL_CTL_MOD, one_shot, &event));
	check(fired(outer, ONE_SHOT_DATA, &count), "a rearmed one-shot member is silent");
	check(!fired(outer, ONE_SHOT_DATA, &count), "a one-shot member fired twice");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
