/* Makes calls with unusual results, and exits with 0 if each has the right one. Prints one line for each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

static void check(const char *what, int is_right)
{
    printf("%s\n", what);
    if (!is_right) {
        fflush(stdout);
        exit(1);
    }
}

static void handler(int signal)
{
    (void)signal;
}

int main(int count, char **words)
{
    if (count != 2)
        return 2;
    /* A pointer to nothing. */
    check("bad output", syscall(SYS_stat, "/", (void *)8) == -1 && errno == EFAULT);
    check("bad input", syscall(SYS_openat, AT_FDCWD, (void *)8, 0) == -1 && errno == EFAULT);
    void *fixed = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check("read-only output", read(0, fixed, 10) <= 0);

    /* Memory that a call reads and writes. */
    int file = open(words[1], O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    check("lock", fcntl(file, F_SETLK, &lock) == 0);
    lock.l_type = F_WRLCK;
    check("lock of oneself", fcntl(file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    loff_t from = 3, to = 100;
    check("offsets", copy_file_range(file, &from, file, &to, 5, 0) == 5 && from == 8 && to == 105);
    int ends[2];
    check("pipe", pipe(ends) == 0);
    struct pollfd polled = {.fd = ends[1], .events = POLLOUT};
    check("poll", poll(&polled, 1, 1000) == 1 && polled.revents == POLLOUT);

    /* An interrupted sleep writes the rest of its time. */
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    struct timespec wanted = {.tv_sec = 20}, rest = {0};
    printf("asleep %d\n", getpid());
    fflush(stdout);
    int slept = nanosleep(&wanted, &rest);
    check("rest", slept == -1 && errno == EINTR && rest.tv_sec <= 20 && rest.tv_sec + rest.tv_nsec > 0);
    dprintf(2, "%ld\n", rest.tv_nsec);

    /* Instructions that read clocks. */
    unsigned int processor;
    unsigned long long first = __rdtsc(), second = __rdtscp(&processor);
    check("time stamps", first != 0 && second >= first);
    dprintf(2, "%llu %llu %u\n", first, second, processor);

    /* Signals that the program sends to itself. */
    check("blocked", raise(0) == 0);
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &before);
    raise(SIGUSR1);
    sigprocmask(SIG_SETMASK, &before, NULL);
    check("end", 1);
    return 0;
}
