package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// defaultWait is how long this agent may take to show its pods; devices are slow, and a store may be repaired.
	defaultWait = 2 * time.Minute
	// answerWait is how long a runtime that does not answer is asked again.
	answerWait = 10 * time.Second
	// endWait is how long an agent that was stopped may take to let go of its store.
	endWait = 15 * time.Second
	// lookEvery is how often is looked while waiting.
	lookEvery = 200 * time.Millisecond
)

// errAgain has poll look again.
type errAgain struct{ error }

// poll looks until it is done, an error is no errAgain, or the time is over; then it returns the last one.
func poll(ctx context.Context, most time.Duration, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		err := look(ctx)
		var again errAgain
		if err == nil || !errors.As(err, &again) || !retry.Sleep(ctx, lookEvery) {
			return err
		}
	}
}

// waitUnused waits until no other process has a store open.
func waitUnused(ctx context.Context, path string) error {
	return poll(ctx, endWait, func(context.Context) error {
		if who := holder(path); who != "" {
			return errAgain{
				fmt.Errorf("%s has %s open: another agent runs here that is not the service; stop it, and try again",
					who, path),
			}
		}
		return nil
	})
}

// holder finds a process that has a file open, "" that there is none.
func holder(path string) string {
	want, err := os.Stat(path)
	if err != nil {
		return ""
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return ""
	}
	for _, dir := range processes {
		pid := filepath.Base(dir)
		if pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue // it has ended
		}
		for _, e := range entries {
			fd := filepath.Join(dir, "fd", e.Name())
			if to, err := os.Readlink(fd); err != nil || filepath.Base(to) != filepath.Base(path) {
				continue // most files need no stat
			}
			if have, err := os.Stat(fd); err == nil && os.SameFile(want, have) {
				name, err := os.ReadFile(filepath.Join(dir, "comm"))
				if err != nil {
					name = []byte("a process")
				}
				return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
			}
		}
	}
	return ""
}

// verify waits until this agent shows the containers that were to run on, and returns those that do not run any more.
func (t *Migration) verify(ctx context.Context, s *state, expected []string) (lost []string, err error) {
	cfg, _, err := v1alpha2.Load(t.Config)
	if err != nil {
		return nil, err
	}
	wait := t.Wait
	if wait <= 0 {
		wait = defaultWait
	}
	err = poll(ctx, wait, func(ctx context.Context) error {
		shown, err := shownBy(ctx, cfg)
		if err != nil {
			return errAgain{fmt.Errorf("it does not answer: %w; see journalctl -u edgecore", err)}
		}
		if lost, err = t.stoppedOf(ctx, s, expected); err != nil {
			return errAgain{err}
		}
		for _, id := range expected {
			if !slices.Contains(lost, id) && !shown[id] {
				return errAgain{fmt.Errorf("it does not show container %s, which runs; see journalctl -u edgecore", id)}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.printf("edgecore runs and has the pods: %d containers run on as they were", len(expected)-len(lost))
	return lost, nil
}

// shownBy asks the agent for the containers that run in its pods. Without its port there is nothing to ask.
func shownBy(ctx context.Context, cfg *v1alpha2.EdgeCore) (map[string]bool, error) {
	k := &cfg.Modules.Edged.TailoredKubeletConfig
	address := k.Address
	if ip := net.ParseIP(address); ip != nil && ip.IsUnspecified() {
		address = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+net.JoinHostPort(address, strconv.Itoa(int(k.ReadOnlyPort)))+"/pods", nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", resp.Status)
	}
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, err
	}
	shown := map[string]bool{}
	for i := range list.Items {
		s := &list.Items[i].Status
		for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
			if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.State.Running != nil {
				shown[id] = true
			}
		}
	}
	return shown, nil
}

// stoppedOf are those of the containers that do not run.
func (t *Migration) stoppedOf(ctx context.Context, s *state, expected []string) ([]string, error) {
	client, err := cri.Dial(s.Endpoint, "", callTimeout)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	list, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, err
	}
	run := map[string]bool{}
	for _, c := range list.GetContainers() {
		run[c.Id] = true
	}
	var lost []string
	for _, id := range expected {
		if !run[id] {
			lost = append(lost, id)
		}
	}
	return lost, nil
}
