package kubelet

import (
	"context"
	"io"

	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

// BinaryEnv names a kubelet that was built before.
const BinaryEnv = "EDGECORE_TEST_KUBELET"

// Build returns the path of the kubelet, which it builds once for each state of test/kubelet.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	return pinned.Program{
		Name:       "kubelet",
		Folder:     "kubelet",
		Target:     "tool",
		Env:        BinaryEnv,
		Takes:      "2 minutes",
		Kubernetes: true,
	}.Build(ctx, progress)
}
