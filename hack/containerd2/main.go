// Command containerd2 builds the containerd 2.x of test/containerd2, unless the cache has it, and
// prints its path. To run pods on it: CONTAINERD="$(go run ./hack/containerd2)" make run
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/edgecore-io/edgecore/test/testenv/containerd"
)

func main() {
	binary, err := containerd.Build2(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "containerd2:", err)
		os.Exit(1)
	}
	fmt.Println(binary)
}
