/* Proves that messages queued in a Unix socket keep the credentials of their sender: pid, uid and
 * gid of the program and of its child. */
#include "victim.h"
#include "victim_stream.h"

static int sender, receiver;
static pid_t child;

static void send_label(char label)
{
	check(send(sender, &label, 1, 0) == 1, "send: %m");
}

static void expect(char label, pid_t from)
{
	char control[CMSG_SPACE(sizeof(struct ucred))] = { 0 }, got = 0;
	struct iovec data = { &got, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct ucred credentials;
	check(recvmsg(receiver, &message, MSG_DONTWAIT) == 1 && got == label, "message is [%c], want [%c]", got, label);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	check(header != NULL && header->cmsg_type == SCM_CREDENTIALS, "message [%c] brings no credentials", label);
	memcpy(&credentials, CMSG_DATA(header), sizeof(credentials));
	check(credentials.pid == from && credentials.uid == getuid() && credentials.gid == getgid(),
	      "message [%c] comes from pid %d, uid %u, want pid %d", label, credentials.pid, credentials.uid, from);
}

static void setup(void)
{
	int ends[2];
	struct victim_gate gate = victim_gate_make();
	must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	sender = ends[0];
	receiver = ends[1];
	victim_set_socket_option(receiver, SOL_SOCKET, SO_PASSCRED, 1);
	send_label('p');
	child = victim_fork();
	if (child == 0) {
		send_label('c');
		victim_gate_open(gate);
		victim_child(NULL, NULL);
	}
	victim_gate_wait(gate);
}

static void verify(void)
{
	check(victim_socket_option(receiver, SOL_SOCKET, SO_PASSCRED) == 1, "SO_PASSCRED is lost");
	victim_wait_readable(receiver, "receiver");
}

static void sabotage(void)
{
	expect('p', getpid());
	send_label('p');
}

static void finish(void)
{
	expect('p', getpid());
	expect('c', child);
	must_fail_with(recv(receiver, &(char){ 0 }, 1, MSG_DONTWAIT), EAGAIN);
	victim_end_child(child);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
