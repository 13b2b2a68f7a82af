// Package runtimelimit limits how many calls that start or end pods the container runtime works on at once.
//
// Too many of them only compete for the processors and the disk: all pods of a burst start late instead of some of them
// at once, and the last one starts later, too. How many are best depends on the device, so the limit is found by
// measurement (level.go). It starts at twice the number of processors and stays between 2 and 16. Calls that start pods
// and calls that end them have a limit each: the former need the processors, the latter mostly wait for the disk.
//
// Who is next is decided by queue.go, which has no clock and no goroutines of its own:
//
//   - Calls of critical and static pods wait only for calls of other such pods, never for ordinary ones.
//   - Then those of the highest priority come first, then those of the oldest pod. A call that has waited for 10
//     seconds comes before both.
//   - A pod that has just been given something by the runtime does not wait for its next call, so that a pod which has
//     begun is not overtaken half-way.
//   - Urgent calls, such as those that end an evicted pod, never wait.
//   - A call that takes much longer than usual stops counting, so that a plugin or a runtime that hangs delays nobody
//     else. StopContainer stops counting when its container does not end at once: a grace period takes no place.
//
// Everything else is not limited: image pulls, probes, commands in containers, and what is asked about pods.
package runtimelimit
