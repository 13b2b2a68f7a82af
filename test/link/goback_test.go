package link

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testGoesBack: a device whose configuration names a cloud that it does not reach goes back to the one before by
// itself: in the running agent, which takes the address over at once, and after a restart. No container is restarted,
// and the Node says why. A correct file is used again.
func testGoesBack(t *testing.T, shared *env.Cluster) {
	e := startEdge(t, shared, map[string]any{"configTrialSeconds": 4})
	e.apply(confAndKey, e.full("one"))
	e.running("one")
	before := e.RunningContainers()
	copies := configfile.CopiesOf(e.Config(), e.Store())
	wait.Until(t, "a copy of the configuration with which the device is connected", func() error {
		if newest, ok := copies.Newest(); !ok || !newest.Connected {
			return fmt.Errorf("the newest copy: %v, connected %v", ok, newest.Connected)
		}
		return nil
	})
	data, err := os.ReadFile(e.Config())
	env.Must(t, err)
	original := string(data)
	for name, restart := range map[string]bool{"while it runs": false, "after a restart": true} {
		wrong := strings.ReplaceAll(original, e.cable.Addr(), "127.0.0.1:1") + "# " + name + "\n"
		if restart {
			env.Must(t, e.Kill9(t.Context()))
		}
		env.Must(t, writeFile(e.Config(), wrong))
		if restart {
			env.Must(t, e.Start(t.Context()))
		}
		e.Condition(health.ConfigurationBad, true)
		wait.Until(t, "the Node to say why "+name, func() error {
			n, err := e.cluster.API.CoreV1().Nodes().Get(t.Context(), e.NodeName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range n.Status.Conditions {
				if c.Type == v1.NodeConditionType(health.ConfigurationBad) && c.Status == v1.ConditionTrue &&
					strings.Contains(c.Message, "the cloud was not reached within 4s") {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %+v", n.Status.Conditions)
		})
		e.unchanged(before, name)
		env.Must(t, writeFile(e.Config(), original))
		e.Condition(health.ConfigurationBad, false)
	}
	e.apply(e.full("two"))
	e.running("one", "two")
	e.unchanged(before, "the end")
}

// writeFile replaces a file.
func writeFile(name, text string) error {
	next := filepath.Join(filepath.Dir(name), "next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, name)
}
