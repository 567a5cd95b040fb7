/* What the machine itself does: the bytes that a queue would move, and nothing else.
 *
 * limits ACT DIRECTORY COUNT SIZE BATCH: prints count, seconds and CPU seconds as JSON. What is read was written
 * just before, and is in the page cache. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, MOST = 1024 };

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static double used(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void *must_allocate(size_t size)
{
    void *found = malloc(size);
    if (found == NULL) {
        perror("malloc");
        exit(1);
    }
    memset(found, 'a', size);
    return found;
}

static void must(int done, const char *what)
{
    if (!done) {
        perror(what);
        exit(1);
    }
}

int main(int arguments, char **argument)
{
    if (arguments != 6) {
        fprintf(stderr, "limits ACT DIRECTORY COUNT SIZE BATCH\n");
        return 2;
    }
    const char *act = argument[1];
    long count = atol(argument[3]), size = atol(argument[4]), batch = atol(argument[5]);
    must(count > 0 && size > 0 && batch > 0 && batch <= MOST, "arguments");

    char path[4096];
    snprintf(path, sizeof path, "%s/limit", argument[2]);
    int file = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    must(file >= 0, path);
    char *body = must_allocate(size), *block = must_allocate(BLOCK);
    struct iovec parts[MOST];
    for (int at = 0; at < batch; at++)
        parts[at] = (struct iovec){body, size};
    long total = count * size;
    char *target = NULL;
    if (strcmp(act, "read") == 0) {
        for (long left = total; left > 0; left -= BLOCK)
            must(write(file, block, left < BLOCK ? left : BLOCK) > 0, "write");
        must(lseek(file, 0, SEEK_SET) == 0, "lseek");
    } else if (strcmp(act, "memcpy") == 0) {
        /* From one half of 64 MiB to the other: more than the caches hold. */
        target = must_allocate(64 * BLOCK);
    }

    double cpu = used(), began = now();
    if (strcmp(act, "write") == 0) {
        for (long at = 0; at < count; at++)
            must(write(file, body, size) == size, "write");
    } else if (strcmp(act, "writev") == 0 || strcmp(act, "sync") == 0) {
        count -= count % batch;
        for (long at = 0; at < count; at += batch) {
            must(writev(file, parts, batch) == batch * size, "writev");
            if (act[0] == 's')
                must(fdatasync(file) == 0, "fdatasync");
        }
    } else if (strcmp(act, "read") == 0) {
        long got, read_in_all = 0;
        while ((got = read(file, block, BLOCK)) > 0)
            read_in_all += got;
        must(read_in_all == total, "read");
    } else if (strcmp(act, "memcpy") == 0) {
        for (long at = 0, block_at = 0; at < total; at += BLOCK, block_at = (block_at + 1) % 32) {
            memcpy(target + block_at * BLOCK, target + (32 + block_at) * BLOCK, BLOCK);
            __asm__ volatile("" : : "r"(target) : "memory"); /* is not left out */
        }
    } else {
        fprintf(stderr, "no act %s\n", act);
        return 2;
    }
    double seconds = now() - began;
    printf("{\"count\": %ld, \"seconds\": %.9f, \"cpu_seconds\": %.6f}\n", count, seconds, used() - cpu);
    return 0;
}
