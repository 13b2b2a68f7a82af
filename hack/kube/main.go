// Command kube builds etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl of test/kube, the
// kubelet of test/kubelet, the metrics-server of test/metricsserver, the Prometheus of test/prometheus and the CSI
// driver of test/gcepd, unless the cache has them, and prints the folder that holds the first. The tests that need them
// build them too; run first, it shows how far the build is.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/gcepd"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubelet"
	"github.com/edgecore-io/edgecore/test/testenv/metricsserver"
	"github.com/edgecore-io/edgecore/test/testenv/prometheus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir, err := kube.Build(ctx, os.Stderr)
	if err == nil {
		_, err = kubelet.Build(ctx, os.Stderr)
	}
	if err == nil {
		_, err = metricsserver.Build(ctx, os.Stderr)
	}
	if err == nil {
		_, err = prometheus.Build(ctx, os.Stderr)
	}
	if err == nil {
		_, err = gcepd.Build(ctx, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
