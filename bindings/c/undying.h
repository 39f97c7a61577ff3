/* What a program may ask of the undying that guards it. Linux; needs nothing but libc.
 *
 * Every call but undying_is_guarded() asks again once a second until it is answered, so that it outlives a restore
 * and a new guardian. On failure they return -1 and set errno:
 *   ENOENT        the program does not run under `undying run`
 *   ECONNREFUSED  its guardian is gone
 *   ECANCELED     the checkpoint was refused or failed; `undying status` tells why
 */
#ifndef UNDYING_H
#define UNDYING_H

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether somebody guards this program. */
static inline int undying_is_guarded(void)
{
	const char *name = getenv("UNDYING_SOCKET");
	return name != NULL && name[0] == '@';
}

/* Asks for one thing, and waits for the answer: what stands behind `ok`, or 0. */
static inline long long undying_ask(const char *word)
{
	const char *name = getenv("UNDYING_SOCKET");
	struct sockaddr_un own, guardian;
	char line[256];
	ssize_t length = -1;
	int socket_fd, reason;

	if (!undying_is_guarded() || strlen(name) >= sizeof(guardian.sun_path)) {
		errno = ENOENT;
		return -1;
	}
	memset(&own, 0, sizeof(own));
	memset(&guardian, 0, sizeof(guardian));
	own.sun_family = guardian.sun_family = AF_UNIX;
	memcpy(guardian.sun_path + 1, name + 1, strlen(name) - 1);
	socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (socket_fd < 0)
		return -1;
	/* An address without a name: the kernel gives one, to which the answer comes. */
	reason = bind(socket_fd, (struct sockaddr *)&own, sizeof(own.sun_family)) < 0 ? errno : 0;
	while (reason == 0 && length < 0) {
		struct pollfd waiting = { socket_fd, POLLIN, 0 };

		if (sendto(socket_fd, word, strlen(word), 0, (struct sockaddr *)&guardian,
			   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))) < 0 &&
		    errno != EAGAIN && errno != EINTR)
			reason = errno;
		else if (poll(&waiting, 1, 1000) > 0)
			length = recv(socket_fd, line, sizeof(line) - 1, MSG_DONTWAIT);
	}
	close(socket_fd);
	if (reason == 0) {
		line[length] = '\0';
		if (strncmp(line, "ok", 2) == 0)
			return atoll(line + 2);
		reason = ECANCELED;
	}
	errno = reason;
	return -1;
}

/* Takes a checkpoint now, and returns its number when it is durable: whatever dies from then on, the program comes
 * back no older than this. After a restore from it this call returns a second time, as late as it is asked again. */
static inline long long undying_checkpoint(void)
{
	return undying_ask("checkpoint");
}

/* Initialisation is over: with `undying run --await-ready`, checkpoints by the clock begin. */
static inline int undying_ready(void)
{
	return (int)undying_ask("ready");
}

/* No checkpoint is taken between the return of undying_hold() and undying_release() of the same process; both may be
 * called by any of its threads, and do not nest. A hold ends after a minute in any case. */
static inline int undying_hold(void)
{
	return (int)undying_ask("hold");
}

static inline int undying_release(void)
{
	return (int)undying_ask("release");
}

#ifdef __cplusplus
}
#endif

#endif
