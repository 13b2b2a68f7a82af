package kubectl

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testTop: kubectl top asks metrics-server, which has asked the node by its certificate for /metrics/resource, twice.
func (n *node) testTop(t *testing.T) {
	env.Must(t, n.fixture.metricsServer())
	// tail keeps what has no end of line.
	n.pod("eater", "(head -c 31457280 /dev/zero; sleep 100000) | tail -n 1")
	n.until(t, "eater", running)
	wait.Until(t, "kubectl top pod", func() error {
		c := n.kubectl(t, "top", "pod", "eater", "--containers", "--no-headers")
		if err := c.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, c.errOut.String())
		}
		line := regexp.MustCompile(`^eater +main +\d+m +(\d+)Mi *\n$`).FindStringSubmatch(c.out.String())
		if line == nil {
			return fmt.Errorf("printed %q, want a line of numbers", c.out.String())
		}
		if mib, err := strconv.Atoi(line[1]); err != nil || mib < 28 || mib > 48 {
			return fmt.Errorf("%s MiB, want 28 to 48 for a pod that keeps 30", line[1])
		}
		return nil
	})
	wait.Until(t, "kubectl top node", func() error {
		c := n.kubectl(t, "top", "node", n.NodeName, "--no-headers")
		if err := c.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, c.errOut.String())
		}
		if !regexp.MustCompile(`^` + regexp.QuoteMeta(n.NodeName) + ` +[1-9]\d*m +\d+% +[1-9]\d*Mi +\d+% *\n$`).
			MatchString(c.out.String()) {
			return fmt.Errorf("printed %q, want a line of numbers", c.out.String())
		}
		return nil
	})
	stats := n.kubectl(t, "get", "--raw", "/api/v1/nodes/"+n.NodeName+"/proxy/stats/summary")
	env.Must(t, stats.Run())
	if !strings.Contains(stats.out.String(), `"name":"eater","namespace":"`+n.NodeName+`"`) {
		t.Errorf("summary = %.300s, want pod eater of %s", stats.out.String(), n.NodeName)
	}
}
