//go:build tools

// Package containerd2 pins the containerd 2.x that the tests of the event path build and run. It
// is a module of its own, so that containerd's dependencies stay out of edgecore's.
package containerd2

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
