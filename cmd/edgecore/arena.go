package main

/*
#include <malloc.h>

// All threads share one heap of the C library, where it has such a setting; otherwise it makes a heap for each thread.
// Go moves the calls of SQLite, the only user of that heap, between all its threads, so each heap would keep what
// SQLite needed there once: 1.5 MB after some bursts of pods. This runs before Go starts its threads.
__attribute__((constructor)) static void one_heap(void) {
#ifdef M_ARENA_MAX
	mallopt(M_ARENA_MAX, 1);
#endif
}
*/
import "C"
