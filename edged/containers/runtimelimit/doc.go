// Package runtimelimit limits how many calls that start or end pods the container runtime works on at once.
//
// Too many calls compete for the processors and the disk: the first pods of a burst start later, and so does the last
// one. The best number depends on the device, so the limit is found by measurement (level.go). It starts at twice the
// number of processors and stays between 4 and 16, or 2 and 16 with one processor. Calls that start pods and calls that
// end pods have separate limits: the former need the processors, the latter mostly wait for the disk and the network.
//
// queue.go decides which call is next. It has no clock and no goroutines of its own:
//
//   - Calls of critical and static pods wait only for calls of other such pods, never for ordinary ones.
//   - Among the others, pods with the highest priority come first, then the oldest pods. A call that has waited for 10
//     seconds precedes both.
//   - If a call of a pod has just succeeded, the pod's next call does not wait, so that a pod is not overtaken halfway
//     through its start. Only StopPodSandbox and RunPodSandbox wait. So of many pods that end at once, the first are
//     gone sooner. After a power cut, when each pod's dead sandbox is stopped before it gets a new one, the first pods
//     run sooner.
//   - Calls in the background, such as those that remove a pod after its end was reported, wait until no others wait or
//     run. After 10 seconds a call is no longer in the background.
//   - Urgent calls, such as those that end an evicted pod, never wait.
//   - A call that takes much longer than usual stops counting, so that a plugin or a runtime that hangs does not delay
//     other pods. StopContainer stops counting after a moment, since it then waits for the container.
//   - Until the first pod of a burst has started a container, half of the limit applies.
//
// Nothing else is limited: neither image pulls, probes, commands in containers, nor queries about pods.
package runtimelimit
