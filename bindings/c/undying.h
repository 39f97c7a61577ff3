/* Requests of a program to its guardian: the process of `undying run` or `undying up` that checkpoints and restarts
 * the program. For Linux. Needs only libc.
 *
 * A request is repeated once a second until its reply arrives. Therefore, a request can succeed even if the program is
 * restored or gets a new guardian in the meantime. On failure, a request returns -1 and sets errno:
 *   ENOENT        the program has no guardian
 *   ECONNREFUSED  the guardian no longer exists
 *   ECANCELED     the checkpoint was refused or has failed; `undying status` shows the reason
 *   other values  errors of socket(2), bind(2) or sendto(2)
 */
#ifndef UNDYING_H
#define UNDYING_H

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reports whether this program has a guardian. Makes no request. */
static inline int undying_is_guarded(void)
{
	const char *name = getenv("UNDYING_SOCKET");
	return name != NULL && name[0] == '@';
}

/* Sends a request of one word, and waits for the reply. Returns the number after `ok` in the reply, or 0. */
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
	/* Without a name, the kernel assigns a unique abstract address. The guardian sends the reply to this address. */
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

/* Requests a checkpoint, and returns its sequence number when the checkpoint is durable. From then on, no death of a
 * process takes the program back to an earlier state. After a restore from this checkpoint, the program waits in this
 * call again. The call then repeats its request, and returns a second time, with the number of a later checkpoint. */
static inline long long undying_checkpoint(void)
{
	return undying_ask("checkpoint");
}

/* Reports that the initialisation is complete. With `undying run --await-ready`, periodic checkpoints begin now. */
static inline int undying_ready(void)
{
	return (int)undying_ask("ready");
}

/* Begins a hold. From the return of this call until undying_release() in the same process, no checkpoint is taken. A
 * hold belongs to the process: any of its threads may begin and end it. Holds do not nest. A hold ends after one
 * minute at the latest. */
static inline int undying_hold(void)
{
	return (int)undying_ask("hold");
}

/* Ends the hold of this process. */
static inline int undying_release(void)
{
	return (int)undying_ask("release");
}

/* The generation of this program: a counter that each restore increments, and random bytes that are new after each
 * restore. Two restores of one checkpoint have the same counter and different random bytes. */
struct undying_generation {
	volatile unsigned long long counter;
	volatile unsigned char random[16];
};

/* Creates and maps a memory file, which undying recognises by its name. Needs no guardian, and makes no request. Call
 * this once, and keep the pointer: children of the process may use it too. Returns NULL and sets errno on failure. */
static inline const struct undying_generation *undying_map_generation(void)
{
	int own = (int)syscall(SYS_memfd_create, "undying-generation", 1 /* MFD_CLOEXEC */);
	void *found = MAP_FAILED;

	if (own < 0)
		return NULL;
	if (ftruncate(own, (off_t)sizeof(struct undying_generation)) == 0)
		found = mmap(NULL, sizeof(struct undying_generation), PROT_READ, MAP_SHARED, own, 0);
	close(own);
	return found == MAP_FAILED ? NULL : (const struct undying_generation *)found;
}

#ifdef __cplusplus
}
#endif

#endif
