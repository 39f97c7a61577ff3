/* Numbered bytes and numbered messages that a victim sends through a channel (pipe, socket,
 * terminal). The received data must equal the sent data: in order, and without lost, duplicated or
 * split messages. For victims whose objects contain queued data. */
#ifndef UNDYING_VICTIM_STREAM_H
#define UNDYING_VICTIM_STREAM_H

#include "victim.h"

#include <poll.h>
#include <sys/socket.h>

#define VICTIM_STREAM_CHUNK 4096
#define VICTIM_MESSAGE_MAX 512

/* One direction of a byte stream or of a message channel. */
struct victim_stream {
	const char *name;
	int in, out; /* `in` returns the data that was written to `out` */
	uint64_t seed;
	uint64_t sent, received;
};

static inline void victim_wait_readable(int fd, const char *name)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	int ready;
	while ((ready = poll(&wait, 1, (int)(victim_patience_us / 1000))) < 0 && errno == EINTR)
		continue;
	check(ready == 1, "%s: nothing to read on fd %d", name, fd);
}

static inline void victim_stream_send(struct victim_stream *stream, size_t length)
{
	while (length > 0) {
		unsigned char chunk[VICTIM_STREAM_CHUNK];
		size_t size = length < sizeof(chunk) ? length : sizeof(chunk);
		for (size_t i = 0; i < size; i++)
			chunk[i] = victim_byte(stream->seed, stream->sent + i);
		ssize_t done = write(stream->out, chunk, size);
		if (done < 0 && errno == EINTR)
			continue;
		check(done > 0, "%s: write to fd %d: %m", stream->name, stream->out);
		stream->sent += (uint64_t)done;
		length -= (size_t)done;
	}
}

static inline void victim_stream_receive(struct victim_stream *stream, size_t length)
{
	while (length > 0) {
		unsigned char chunk[VICTIM_STREAM_CHUNK];
		size_t size = length < sizeof(chunk) ? length : sizeof(chunk);
		victim_wait_readable(stream->in, stream->name);
		ssize_t done = read(stream->in, chunk, size);
		if (done < 0 && errno == EINTR)
			continue;
		check(done > 0, "%s: read from fd %d gave %zd: %m", stream->name, stream->in, done);
		for (ssize_t i = 0; i < done; i++)
			check(chunk[i] == victim_byte(stream->seed, stream->received + (uint64_t)i),
			      "%s: byte %llu is wrong", stream->name,
			      (unsigned long long)stream->received + (unsigned long long)i);
		stream->received += (uint64_t)done;
		length -= (size_t)done;
	}
}

/* Sends and receives the same number of bytes, so that the length of the queue stays the same. */
static inline void victim_stream_turn(struct victim_stream *stream, size_t length)
{
	victim_stream_send(stream, length);
	victim_stream_receive(stream, length);
}

/* Receives all queued bytes. */
static inline void victim_stream_drain(struct victim_stream *stream)
{
	victim_stream_receive(stream, stream->sent - stream->received);
}

/* Checks that the queue contains no more data than was sent. */
static inline void victim_stream_must_be_empty(struct victim_stream *stream)
{
	struct pollfd wait = { .fd = stream->in, .events = POLLIN };
	check(poll(&wait, 1, 0) == 0, "%s: more arrived than was sent", stream->name);
}

static inline size_t victim_message_length(uint64_t index)
{
	return 1 + (size_t)(victim_mix(index) % (VICTIM_MESSAGE_MAX - 1));
}

static inline void victim_message_send(struct victim_stream *stream)
{
	unsigned char message[VICTIM_MESSAGE_MAX];
	size_t length = victim_message_length(stream->sent);
	victim_fill(message, length, stream->seed + stream->sent);
	check(write(stream->out, message, length) == (ssize_t)length, "%s: send: %m", stream->name);
	stream->sent++;
}

static inline void victim_message_receive(struct victim_stream *stream)
{
	unsigned char message[VICTIM_MESSAGE_MAX + 1];
	size_t length = victim_message_length(stream->received);
	victim_wait_readable(stream->in, stream->name);
	ssize_t got = read(stream->in, message, sizeof(message));
	check(got == (ssize_t)length, "%s: message %llu has %zd bytes, sent were %zu", stream->name,
	      (unsigned long long)stream->received, got, length);
	check(victim_differs(message, length, stream->seed + stream->received) < 0, "%s: message %llu is wrong",
	      stream->name, (unsigned long long)stream->received);
	stream->received++;
}

static inline void victim_message_turn(struct victim_stream *stream)
{
	victim_message_send(stream);
	victim_message_receive(stream);
}

static inline void victim_message_drain(struct victim_stream *stream)
{
	while (stream->received < stream->sent)
		victim_message_receive(stream);
}

/* Returns the value of an integer socket option. */
static inline int victim_socket_option(int fd, int level, int option)
{
	int value = 0;
	socklen_t size = sizeof(value);
	check(getsockopt(fd, level, option, &value, &size) == 0, "getsockopt(%d, %d, %d): %m", fd, level, option);
	return value;
}

static inline void victim_set_socket_option(int fd, int level, int option, int value)
{
	check(setsockopt(fd, level, option, &value, sizeof(value)) == 0, "setsockopt(%d, %d, %d): %m", fd, level,
	      option);
}

#endif
