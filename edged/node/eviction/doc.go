// Package eviction protects a node that runs out of memory, disk, inodes or processes: it reports the node's pressure
// conditions, refuses pods that would make it worse, and evicts pods, one at a time and in the kubelet's order, until
// there is enough again.
//
// What to do is decided by pure functions: Parse (the thresholds of a configuration), Step (what is met, since when,
// what follows), Rank (who goes first) and Message. Manager carries it out, and Notifier waits for the kernel to report
// that memory gets short. It knows no runtime and no store: those are functions in Options.
//
// # Promises
//
//   - A pod goes only while a threshold is met, hard or past its grace period; after each eviction the node is measured
//     again.
//   - Before a pod is evicted for disk space, unused images and containers are removed.
//   - Critical pods (static ones and those of the system's priorities) never go, and are always taken.
//   - Durations are taken from the monotonic clock: setting the time ends no grace period.
//   - While nothing is short, a look costs a few reads of files every Period and writes nothing.
package eviction
