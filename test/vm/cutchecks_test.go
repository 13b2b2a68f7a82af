package vm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/peer"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// rows is what a store has of objects that a cloud sends.
type rows struct {
	stored map[string]peer.Stored
	// policies are the restart policies of the pods that are not to end.
	policies map[string]v1.RestartPolicy
}

const rowsQuery = `SELECT key || '|' || json_extract(value, '$.metadata.resourceVersion') || '|' || (json_extract(value, '$.metadata.deletionTimestamp') IS NOT NULL)
  || '|' || ifnull(json_extract(value, '$.spec.restartPolicy'), '') FROM meta WHERE type IN ('pod', 'configmap', 'secret');`

// parseRows reads what rowsQuery gives.
func parseRows(text string) (rows, error) {
	r := rows{stored: map[string]peer.Stored{}, policies: map[string]v1.RestartPolicy{}}
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		if len(fields) != 4 {
			return r, fmt.Errorf("a row %q", line)
		}
		version, err := strconv.Atoi(fields[1])
		if err != nil {
			return r, fmt.Errorf("a row %q: %w", line, err)
		}
		r.stored[fields[0]] = peer.Stored{Version: version, Ending: fields[2] == "1"}
		if strings.Contains(fields[0], "/pod/") && fields[2] == "0" {
			r.policies[fields[0]] = v1.RestartPolicy(fields[3])
		}
	}
	return r, nil
}

// store reads the store beside the agent, and looks whether it is sound.
func (l *loaded) store(what string) rows {
	l.t.Helper()
	var r rows
	wait.Until(l.t, what+": the store", func() error {
		out, err := l.Run(l.t.Context(), "sqlite3", "-readonly", storeFile, "PRAGMA integrity_check;", rowsQuery)
		if err != nil {
			return err
		}
		sound, text, _ := strings.Cut(out, "\n")
		if sound != "ok" {
			l.t.Errorf("%s: integrity check = %q, want \"ok\"", what, sound)
		}
		r, err = parseRows(text)
		return err
	})
	if left := l.sh("ls " + storeFile + ".corrupt* 2>/dev/null || true"); left != "" {
		l.t.Errorf("%s: files of damaged stores = %q, want none", what, left)
	}
	return r
}

// allRun waits until every pod of the store is as it has to be.
func (l *loaded) allRun(what string, r rows, journal peer.Journal) map[string]*v1.Pod {
	l.t.Helper()
	var pods map[string]*v1.Pod
	wait.Until(l.t, what+": all pods to run", func() error {
		var err error
		if pods, err = l.pods(); err != nil {
			return err
		}
		tasks, err := l.Shell(l.t.Context(), "ctr -n k8s.io tasks ls")
		if err != nil {
			return err
		}
		var wrong []error
		for name, policy := range r.policies {
			finished := journal[name].Finished
			status := l.cloud.Status(name)
			if err := after(pods[name], policy, tasks, finished, &status); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %s: %w", what, name, err))
			}
		}
		return errors.Join(wrong...)
	})
	return pods
}

// pods are those that the agent has, by their names on the wire.
func (d *device) pods() (map[string]*v1.Pod, error) {
	out, err := d.Run(d.t.Context(), "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:10255/pods")
	if err != nil {
		return nil, err
	}
	var list v1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	pods := map[string]*v1.Pod{}
	for _, p := range list.Items {
		pods[p.Namespace+"/pod/"+p.Name] = &p
	}
	return pods, nil
}

// after tells what is wrong with a pod after a restart of its machine. One that runs for ever has to run: not only in
// its status, which may be an earlier one, but in the runtime. One that ends by itself has ended, with or without
// success; what the cloud has been told of its end stays so, and it does not run again.
func after(p *v1.Pod, policy v1.RestartPolicy, tasks string, finished bool, told *v1.PodStatus) error {
	if p == nil {
		return errors.New("the agent does not know it")
	}
	if policy == v1.RestartPolicyNever {
		switch {
		case p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed:
			return fmt.Errorf("it is %s", p.Status.Phase)
		case finished && p.Status.Phase != told.Phase:
			return fmt.Errorf("it is %s, and was %s", p.Status.Phase, told.Phase)
		case finished && container(&p.Status) != container(told):
			return fmt.Errorf("it ran again, in container %s", container(&p.Status))
		}
		return nil
	}
	if !ready(&p.Status) {
		return fmt.Errorf("%s, %+v", p.Status.Phase, p.Status.ContainerStatuses)
	}
	if !hasTask(tasks, container(&p.Status)) {
		return fmt.Errorf("container %s does not run", container(&p.Status))
	}
	return nil
}

func container(s *v1.PodStatus) string {
	if len(s.ContainerStatuses) == 0 {
		return ""
	}
	return strings.TrimPrefix(s.ContainerStatuses[0].ContainerID, "containerd://")
}

func ready(s *v1.PodStatus) bool {
	return s.Phase == v1.PodRunning && len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].Ready &&
		s.ContainerStatuses[0].State.Running != nil
}

// hasTask looks for a running container in what `ctr tasks ls` says.
func hasTask(tasks, id string) bool {
	for line := range strings.Lines(tasks) {
		if f := strings.Fields(line); id != "" && len(f) == 3 && f[0] == id && f[2] == "RUNNING" {
			return true
		}
	}
	return false
}

// settings looks whether a pod sees the configmap as the store has it.
func (l *loaded) settings(what string, pods map[string]*v1.Pod) {
	l.t.Helper()
	for name, p := range pods {
		if p.DeletionTimestamp != nil || !ready(&p.Status) {
			continue
		}
		began := time.Now()
		wait.Until(l.t, what+": the settings in a pod", func() error {
			out, err := l.Shell(l.t.Context(),
				fmt.Sprintf(
					`sqlite3 -readonly %s "SELECT json_extract(value, '$.data.%s') FROM meta WHERE key='default/configmap/%s'" | tr -d '\n' | md5sum
tr -d '\n' < /var/lib/kubelet/pods/%s/volumes/kubernetes.io~configmap/%s/%s | md5sum`, storeFile, peer.Value,
					peer.Settings, p.UID, peer.Settings, peer.Value))
			if err != nil {
				return err
			}
			if sums := strings.Fields(out); len(sums) != 4 || sums[0] != sums[2] {
				return fmt.Errorf("%s: %s sees other settings than the store has: %s", what, name, out)
			}
			return nil
		})
		l.t.Logf("%s: %s saw its settings after %v", what, name, time.Since(began).Round(time.Second))
		return
	}
}
