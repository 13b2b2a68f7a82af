package main

/*
#include <malloc.h>

// glibc would create a heap for each thread; with this setting all threads share one. SQLite is the only user of the C
// heap, and Go runs its calls on any thread, so each heap would keep the memory that SQLite once needed there: 1.5 MB
// in all after some bursts of pods. This runs before Go starts its threads. Other C libraries have no such setting.
__attribute__((constructor)) static void one_heap(void) {
#ifdef M_ARENA_MAX
	mallopt(M_ARENA_MAX, 1);
#endif
}

static void trim_heap(void) {
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
*/
import "C"

// trimCHeap returns free memory of the C heap to the kernel, also between parts that are in use. Other C libraries than
// glibc do so by themselves.
func trimCHeap() { C.trim_heap() }
