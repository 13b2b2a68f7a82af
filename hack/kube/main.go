// Command kube builds programs of others that tests run, unless the cache has them: all of them, or those that its
// arguments name. The tests that need one build it too; run before them, it shows how far the build is.
//
//	kubernetes      etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl of test/kube
//	kubelet         the kubelet of test/kubelet
//	metrics-server  the metrics-server of test/metricsserver
//	prometheus      the Prometheus of test/prometheus
//	gcepd           the CSI driver of test/gcepd
//
// It prints the path of each: of kubernetes the folder.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/gcepd"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubelet"
	"github.com/edgecore-io/edgecore/test/testenv/metricsserver"
	"github.com/edgecore-io/edgecore/test/testenv/prometheus"
)

// program is what an argument names.
type program struct {
	name  string
	build func(ctx context.Context, progress io.Writer) (path string, err error)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	programs := []program{
		{"kubernetes", kube.Build},
		{"kubelet", kubelet.Build},
		{"metrics-server", metricsserver.Build},
		{"prometheus", prometheus.Build},
		{"gcepd", gcepd.Build},
	}
	var known []string
	for _, p := range programs {
		known = append(known, p.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%q is not a program that it builds; want one of %s", name, strings.Join(known, ", "))
		}
	}
	for _, p := range programs {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		path, err := p.build(ctx, os.Stderr)
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}
