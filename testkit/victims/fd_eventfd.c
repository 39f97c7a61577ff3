/* Proves that eventfds are restored with counter (up to the maximum), semaphore mode and flags. A
 * parent and a child still share an eventfd after the restore. */
#include "victim.h"

#include <sys/eventfd.h>

#define LARGEST 0xfffffffffffffffeu

static int plain, semaphore, largest, request, response;
static uint64_t plain_value = 0x1234567890u;
static uint64_t semaphore_value = 9;
static pid_t child;

static void put(int fd, uint64_t value)
{
	check(write(fd, &value, sizeof(value)) == sizeof(value), "eventfd write: %m");
}

static uint64_t take(int fd)
{
	uint64_t value = 0;
	ssize_t got;
	while ((got = read(fd, &value, sizeof(value))) < 0 && errno == EINTR)
		continue;
	check(got == sizeof(value), "eventfd read: %m");
	return value;
}

static void setup(void)
{
	plain = must(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	put(plain, plain_value);
	semaphore = must(eventfd((unsigned)semaphore_value, EFD_SEMAPHORE | EFD_NONBLOCK));
	largest = must(eventfd(0, EFD_NONBLOCK));
	put(largest, LARGEST);
	request = must(eventfd(0, 0));
	response = must(eventfd(0, 0));
	child = victim_fork();
	for (; child == 0;)
		put(response, take(request) + 1);
}

static void work(void)
{
	check(take(plain) == plain_value, "counter is wrong");
	put(plain, ++plain_value);
	check(take(semaphore) == 1, "semaphore does not count by one");
	put(semaphore, 1);
	put(request, 40 + victim_ticks % 100);
	check(take(response) == 41 + victim_ticks % 100, "the child answered wrongly");
}

static void verify(void)
{
	check(fcntl(plain, F_GETFD) == FD_CLOEXEC && fcntl(semaphore, F_GETFD) == 0, "close-on-exec changed");
	check((fcntl(plain, F_GETFL) & O_NONBLOCK) != 0 && (fcntl(request, F_GETFL) & O_NONBLOCK) == 0,
	      "status flags changed");
	must_fail_with(write(largest, &(uint64_t){ 1 }, 8), EAGAIN);
	work();
}

static void sabotage(void)
{
	put(plain, 1);
}

static void finish(void)
{
	for (uint64_t i = 0; i < semaphore_value; i++)
		check(take(semaphore) == 1, "semaphore does not count by one");
	must_fail_with(read(semaphore, &(uint64_t){ 0 }, 8), EAGAIN);
	check(take(largest) == LARGEST, "the largest value is lost");
	must(kill(child, SIGKILL));
	must(waitpid(child, NULL, 0));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
