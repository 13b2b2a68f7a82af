// Package prometheus runs the real Prometheus beside a private cluster, which finds the nodes there as it does in a
// cluster. It is the one that test/prometheus pins.
package prometheus

import (
	"context"
	"io"

	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

// BinaryEnv names a Prometheus that was built before.
const BinaryEnv = "EDGECORE_TEST_PROMETHEUS"

// Build returns the path of Prometheus. It has no pages, which the module does not hold, and finds targets in
// Kubernetes only.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	return pinned.Program{
		Name:   "prometheus",
		Folder: "prometheus",
		Target: "tool",
		Tags:   "remove_all_sd,enable_kubernetes_sd",
		Env:    BinaryEnv,
		Takes:  "4 minutes",
	}.Build(ctx, progress)
}
