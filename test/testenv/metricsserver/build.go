// Package metricsserver runs the real metrics-server beside a private cluster, which `kubectl top` asks. It is the one
// that test/metricsserver pins.
package metricsserver

import (
	"context"
	"io"

	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

// BinaryEnv names a metrics-server that was built before.
const BinaryEnv = "EDGECORE_TEST_METRICS_SERVER"

// Build returns the path of metrics-server.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	return pinned.Program{
		Name:   "metrics-server",
		Folder: "metricsserver",
		Target: "tool",
		Env:    BinaryEnv,
		Takes:  "3 minutes",
	}.Build(ctx, progress)
}
