/* A subject that uses the header undying.h, and appends lines to the file DIARY:
 *
 *   asker DIARY checkpoint   In each round: `at N 0`. In each fifth round, also requests a checkpoint, and then
 *                            appends `durable N SEQ`.
 *   asker DIARY hold         Repeats: `held T`, 120 ms without checkpoints, `released T`.
 *   asker DIARY ready        After 400 ms of initialisation: `ready T`. Then sleeps until it is killed.
 *
 * N is the number of the round, and SEQ the sequence number of the checkpoint. T is the time in RFC
 * 3339. The exit status is 7 if a request is refused. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "undying.h"

static const char *diary;

static void note(const char *line, size_t length)
{
	int fd = open(diary, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, line, length) != (ssize_t)length)
		_exit(4);
	close(fd);
}

static void note_number(const char *what, long long one, long long two)
{
	char line[80];

	note(line, (size_t)snprintf(line, sizeof(line), "%s %lld %lld\n", what, one, two));
}

static void note_time(const char *what)
{
	char line[80], text[40];
	struct timespec now;
	struct tm date;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &date);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &date);
	note(line, (size_t)snprintf(line, sizeof(line), "%s %s.%06ldZ\n", what, text, now.tv_nsec / 1000));
}

static void nap(long ms)
{
	const struct timespec time = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

int main(int argc, char **argv)
{
	if (argc < 3 || !undying_is_guarded())
		return 5;
	diary = argv[1];
	if (strcmp(argv[2], "ready") == 0) {
		nap(400);
		note_time("ready");
		if (undying_ready() < 0)
			return 7;
		for (;;)
			nap(10);
	}
	for (volatile long long round = 1; argv[2][0] == 'c'; round++) {
		note_number("at", round, 0);
		if (round % 5 == 0) {
			long long sequence = undying_checkpoint();

			if (sequence <= 0)
				return 7;
			note_number("durable", round, sequence);
		}
		nap(1);
	}
	for (;;) {
		if (undying_hold() < 0)
			return 7;
		note_time("held");
		nap(120);
		note_time("released");
		if (undying_release() < 0)
			return 7;
		nap(60);
	}
}
