package edge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// counter prints a line again and again, and what somebody writes to the file /asked.
const counter = `i=0; while :; do
  i=$((i+1)); echo line $i
  if [ -s /asked ]; then read word < /asked; rm /asked; echo answer $word; fi
  sleep 0.05
done`

// TestLogIsOpenedAgain: a log that somebody has removed is opened again. So is one that an agent has renamed which was
// killed before the runtime had opened a new one.
func TestLogIsOpenedAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{Agent: agent.Options{Kubelet: map[string]any{
		"containerLogMaxSize": "16Ki", "containerLogMaxFiles": 2, "containerLogMonitorInterval": "3s",
	}}})
	n.Manifest("a", env.Pod("a", counter))
	pod := n.Running("a")["a"]
	log := filepath.Join(n.PodLogs(), fmt.Sprintf("default_%s_%s", pod.Name, pod.UID), "main", "0.log")

	n.saysUntil(pod, "line 1\n")
	env.Must(t, os.Remove(log))
	n.answers(pod, log, "removed")
	env.Must(t, os.RemoveAll(filepath.Dir(log)))
	n.answers(pod, log, "folder-removed")

	n.kill()
	part := log + ".20260102-030405" // older than all that the agent makes
	env.Must(t, os.Rename(log, part))
	wait.Until(t, "the runtime to write more to the renamed log than all parts may take", func() error {
		if info, err := os.Stat(part); err != nil || info.Size() < 40<<10 {
			return fmt.Errorf("%v, %v", info, err)
		}
		return nil
	})
	n.start()
	wait.Until(t, "the renamed log to be compressed", func() error {
		_, err := os.Stat(part + ".gz")
		return err
	})
	n.answers(pod, log, "renamed-before-a-kill")
}

// answers waits until the log of a pod that runs the counter exists, and then shows a word that its container is asked
// to print.
func (n *node) answers(p *v1.Pod, log, word string) {
	n.T.Helper()
	wait.Until(n.T, "the log to be opened again", func() error {
		_, err := os.Stat(log)
		return err
	})
	_, err := n.ExecIn(p.Name, "sh", "-c", "echo "+word+" > /asked")
	env.Must(n.T, err)
	wait.Until(n.T, "the answer in the log", func() error {
		out, err := n.Run(n.T.Context(), "logs", p.Name, "-c", "main")
		if err != nil || !strings.Contains(out, "answer "+word) {
			return fmt.Errorf("the log is %.200q, %v; want \"answer %s\" in it", out, err, word)
		}
		return nil
	})
}
