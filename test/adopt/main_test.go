// Package adopt shows on a real containerd that a device of KubeEdge is taken over with its containers running on, and
// given back. The containers, the volumes and the store are made the way a kubelet of Kubernetes before 1.31 and
// KubeEdge make them; systemd is played by a script, which starts and stops real processes.
package adopt

import (
	"os"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }
