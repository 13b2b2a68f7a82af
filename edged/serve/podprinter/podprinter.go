// Package podprinter summarizes a pod's status in a line, in kubectl's words, for the command line and the status page.
package podprinter

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Line is what a table shows of a pod.
type Line struct {
	// Ready of Total containers are ready.
	Ready, Total int
	// Status is as "Running", "CrashLoopBackOff" or "Init:0/1".
	Status string
	// Restarts has when the last one was, if there was one: "2 (5m ago)".
	Restarts, Age string
}

// Summarize summarizes a pod. It is pure.
func Summarize(p *v1.Pod, now time.Time) Line {
	l := Line{Total: len(p.Spec.Containers), Status: string(p.Status.Phase)}
	if p.Status.Reason != "" {
		l.Status = p.Status.Reason
	}
	restarts, last := 0, time.Time{}
	count := func(s *v1.ContainerStatus) {
		restarts += int(s.RestartCount)
		if t := s.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	initializing := false
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		count(s)
		if text := initStatus(s, i, len(p.Spec.InitContainers)); text != "" && !initializing &&
			p.Status.Phase != v1.PodSucceeded {
			l.Status, initializing = text, true
		}
	}
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		s := &p.Status.ContainerStatuses[i]
		count(s)
		if s.Ready {
			l.Ready++
		}
		if text := containerStatus(s); text != "" && !initializing {
			l.Status = text
		}
	}
	if l.Status == "Completed" && l.Ready > 0 {
		l.Status = string(v1.PodRunning)
	}
	if p.DeletionTimestamp != nil {
		l.Status = "Terminating"
	}
	l.Restarts = fmt.Sprint(restarts)
	if restarts > 0 && !last.IsZero() {
		l.Restarts += " (" + duration.HumanDuration(now.Sub(last)) + " ago)"
	}
	l.Age = "<unknown>"
	switch {
	case !p.CreationTimestamp.IsZero():
		l.Age = duration.HumanDuration(now.Sub(p.CreationTimestamp.Time))
	case p.Status.StartTime != nil:
		l.Age = duration.HumanDuration(now.Sub(p.Status.StartTime.Time))
	}
	return l
}

// Healthy reports whether a pod needs no attention: all of it is ready, or it has completed.
func Healthy(p *v1.Pod) bool {
	switch p.Status.Phase {
	case v1.PodSucceeded:
		return true
	case v1.PodRunning:
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodReady {
				return c.Status == v1.ConditionTrue
			}
		}
	}
	return false
}

// Why says in words why a pod is not healthy: its own message, or that of the first container that waits or has failed;
// "" where nothing is known.
func Why(p *v1.Pod) string {
	if p.Status.Message != "" {
		return p.Status.Message
	}
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if text := whyContainer(&list[i]); text != "" {
				return text
			}
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status == v1.ConditionFalse && c.Message != "" {
			return c.Message
		}
	}
	return ""
}

func whyContainer(s *v1.ContainerStatus) string {
	ended, waiting := s.State.Terminated, s.State.Waiting
	if waiting != nil && waiting.Reason == "CrashLoopBackOff" {
		ended = s.LastTerminationState.Terminated // which says more than that it waits
	}
	switch {
	case ended != nil && ended.ExitCode != 0 && ended.Message != "":
		return fmt.Sprintf("%s: ended with exit code %d: %s", s.Name, ended.ExitCode, ended.Message)
	case ended != nil && ended.ExitCode != 0:
		return fmt.Sprintf("%s: ended with exit code %d", s.Name, ended.ExitCode)
	case waiting != nil && waiting.Message != "":
		return s.Name + ": " + waiting.Message
	}
	return ""
}

// initStatus is what an init container says of its pod, "" when it has nothing against it.
func initStatus(s *v1.ContainerStatus, i, total int) string {
	switch {
	case s.State.Terminated != nil && s.State.Terminated.ExitCode == 0, s.State.Running != nil && s.Started != nil &&
		*s.Started && s.Ready:
		return ""
	case s.State.Terminated != nil:
		return "Init:" + terminatedText(s.State.Terminated)
	case s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != "PodInitializing" &&
		s.State.Waiting.Reason != "ContainerCreating":
		return "Init:" + s.State.Waiting.Reason
	}
	return fmt.Sprintf("Init:%d/%d", i, total)
}

func containerStatus(s *v1.ContainerStatus) string {
	switch {
	case s.State.Waiting != nil:
		return s.State.Waiting.Reason
	case s.State.Terminated != nil:
		return terminatedText(s.State.Terminated)
	}
	return ""
}

func terminatedText(t *v1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}
