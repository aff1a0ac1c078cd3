/* Preloaded into a process, sets its clock forward by the seconds that the file $FAKE_CLOCK holds; the steady clock stays. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    const char *place = getenv("FAKE_CLOCK");
    FILE *file = clock == CLOCK_REALTIME && place ? fopen(place, "r") : NULL;
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) == 1) now->tv_sec += seconds;
        fclose(file);
    }
    return failed;
}
