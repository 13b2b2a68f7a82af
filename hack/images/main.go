// Command images builds the archive of local test images and prints its path. Load it into any
// containerd with: ctr -n k8s.io images import "$(go run ./hack/images)"
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/edgecore-io/edgecore/test/testenv/images"
)

func main() {
	archive, err := images.Archive(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	fmt.Println(archive)
}
