/* Sends requests to a redis server over TCP on this machine, at a given rate or at the highest possible rate. Prints
 * the response times and the number of replies as one line of JSON.
 *
 * Options:
 *   port=, seconds=, seed=
 *   rate=               requests per second; with 0, each connection sends its next request after each reply
 *   connections=        number of connections
 *   keys=, value=       number of keys, and bytes of each value
 *   set=, get=, push=   shares of SET, GET and LPUSH in the mix
 *   tick=               length of a tick in microseconds
 *
 * With a rate, all requests of a tick are due at its beginning. A separate wait for each request would need a whole
 * processor, which the measured programs may need on a small machine. The response time of a request begins when the
 * request is due, and not when it is sent. Therefore, a stop of the server lengthens the response times of all requests
 * that are due during the stop. The type of each reply is checked. */
#include "subject.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define CONNECTIONS_MAX 1024
#define LISTS 1000
/* LTRIM shortens lists to this length, so that the memory of the server does not grow without a limit. */
#define LIST_LENGTH 200
#define TIMES_MAX (1ul << 26)
#define VALUE_MAX 65536
/* Maximum wait for replies, in ns. After the wait, the program reads the clock again. */
#define NAP_NS 1000000

enum kind { SET, GET, PUSH, TRIM };

static struct connection {
	int fd;
	int is_busy;
	enum kind kind;
	uint64_t since;
	size_t missing, got;
	char head[16];
} connections[CONNECTIONS_MAX];

static unsigned connection_count, idle[CONNECTIONS_MAX], idle_count;
static uint64_t keys, shares[3], state, answered, errors, tick_ns;
static size_t value_bytes;
static char value[VALUE_MAX];
static uint32_t *times;

static void dial(struct connection *to, uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int on = 1;
	to->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (to->fd < 0 || connect(to->fd, (struct sockaddr *)&at, sizeof(at)))
		fail("no connection");
	setsockopt(to->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static enum kind choose(void)
{
	uint64_t drawn = draw(&state) % (shares[0] + shares[1] + shares[2]);
	if (drawn < shares[0])
		return SET;
	if (drawn < shares[0] + shares[1])
		return GET;
	return draw(&state) % LIST_LENGTH ? PUSH : TRIM;
}

static void request(struct connection *over, uint64_t since)
{
	static char line[VALUE_MAX + 256];
	uint64_t key = draw(&state) % keys;
	int length = 0;
	over->kind = choose();
	over->since = since;
	over->is_busy = 1;
	over->got = over->missing = 0;
	if (over->kind == GET)
		length = snprintf(line, sizeof(line), "GET k%llu\r\n", (unsigned long long)key);
	else if (over->kind == TRIM)
		length = snprintf(line, sizeof(line), "LTRIM l%llu 0 %d\r\n", (unsigned long long)key % LISTS, LIST_LENGTH);
	else
		length = snprintf(line, sizeof(line), "%s %c%llu %.*s\r\n", over->kind == SET ? "SET" : "LPUSH",
				  over->kind == SET ? 'k' : 'l',
				  (unsigned long long)(over->kind == SET ? key : key % LISTS), (int)value_bytes, value);
	if (send(over->fd, line, (size_t)length, MSG_NOSIGNAL) != length)
		fail("a request could not be sent");
}

/* Receives data of a reply. Returns 1 when the reply is complete. */
static int receive(struct connection *over)
{
	static char bytes[VALUE_MAX + 64];
	ssize_t got = recv(over->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	if (got < 0 && errno == EAGAIN)
		return 0;
	if (got <= 0)
		fail("the server has gone");
	for (ssize_t i = 0; i < got && !over->missing && over->got < sizeof(over->head); i++) {
		over->head[over->got++] = bytes[i];
		if (bytes[i] != '\n')
			continue;
		/* For a value, the remaining bytes are its body and the line end. */
		long body = over->head[0] == '$' ? strtol(over->head + 1, 0, 10) : -1;
		if (over->head[0] != (over->kind == GET ? '$' : over->kind == PUSH ? ':' : '+'))
			errors++;
		if (body < 0)
			return 1;
		over->missing = (size_t)body + 2;
		got -= i + 1;
		break;
	}
	if (!over->missing)
		return 0;
	over->missing -= (size_t)got < over->missing ? (size_t)got : over->missing;
	return !over->missing;
}

static int by_size(const void *one, const void *two)
{
	uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)two;
	return (a > b) - (a < b);
}

static void report(double seconds, uint64_t due)
{
	size_t count = answered < TIMES_MAX ? answered : TIMES_MAX;
	if (!count)
		fail("no answer");
	qsort(times, count, sizeof(*times), by_size);
	printf("{\"answered\":%llu,\"due\":%llu,\"seconds\":%.3f,\"per_second\":%.1f,\"errors\":%llu,", (unsigned long long)answered,
	       (unsigned long long)due, seconds, (double)answered / seconds, (unsigned long long)errors);
	printf("\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f}\n", times[count / 2] / 10.0,
	       times[count / 100 * 99] / 10.0, times[(size_t)((double)count * 0.999)] / 10.0, times[count - 1] / 10.0);
}

static void settle(struct connection *with)
{
	uint64_t took = (clock_ns(CLOCK_MONOTONIC) - with->since) / 100;
	if (answered < TIMES_MAX)
		times[answered] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
	answered++;
	with->is_busy = 0;
	idle[idle_count++] = (unsigned)(with - connections);
}

static uint64_t due_at(uint64_t began, uint64_t sent, uint64_t rate)
{
	uint64_t after = (uint64_t)((double)sent * 1e9 / (double)rate);
	return began + after - after % tick_ns;
}

static void load(int poll, uint64_t rate, double seconds)
{
	uint64_t began = clock_ns(CLOCK_MONOTONIC), end = began + (uint64_t)(seconds * 1e9), sent = 0, now = began;
	struct epoll_event events[64];
	prctl(PR_SET_TIMERSLACK, 1000);
	while ((now = clock_ns(CLOCK_MONOTONIC)) < end) {
		while (idle_count) {
			uint64_t due = rate ? due_at(began, sent, rate) : now;
			if (due > now)
				break;
			request(&connections[idle[--idle_count]], due);
			sent++;
		}
		struct timespec nap = { .tv_nsec = NAP_NS };
		if (rate && idle_count) {
			uint64_t due = due_at(began, sent, rate);
			nap.tv_nsec = due - now < NAP_NS ? (long)(due - now) : NAP_NS;
		}
		int count = epoll_pwait2(poll, events, 64, &nap, 0);
		for (int i = 0; i < count; i++) {
			struct connection *over = &connections[events[i].data.u32];
			if (receive(over))
				settle(over);
		}
	}
	report((double)(now - began) / 1e9, rate ? (uint64_t)(seconds * (double)rate) : sent);
}

int main(int argc, char **argv)
{
	uint16_t port = (uint16_t)number(argc, argv, "port", 7941);
	connection_count = (unsigned)number(argc, argv, "connections", 50);
	keys = number(argc, argv, "keys", 1000000);
	value_bytes = number(argc, argv, "value", 100);
	tick_ns = number(argc, argv, "tick", 200) * 1000;
	shares[0] = number(argc, argv, "set", 0), shares[1] = number(argc, argv, "get", 0);
	shares[2] = number(argc, argv, "push", 0);
	state = 88172645463325252u + number(argc, argv, "seed", 0) * 7919;
	if (!connection_count || connection_count > CONNECTIONS_MAX || value_bytes > VALUE_MAX || !keys || !tick_ns ||
	    !(shares[0] + shares[1] + shares[2]))
		fail("options");
	memset(value, 'v', sizeof(value));
	times = memory(TIMES_MAX * sizeof(*times));
	int poll = epoll_create1(0);
	for (unsigned i = 0; i < connection_count; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data = { .u32 = i } };
		dial(&connections[i], port);
		if (epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].fd, &event))
			fail("epoll");
		idle[idle_count++] = i;
	}
	load(poll, number(argc, argv, "rate", 0), strtod(option(argc, argv, "seconds", "5"), 0));
	return errors ? 1 : 0;
}
