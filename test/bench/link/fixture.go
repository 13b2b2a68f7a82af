package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

// fixture is a cluster with a cloudcore, and the cable to it.
type fixture struct {
	opts  options
	dir   string
	kube  *kube.Cluster
	api   kubernetes.Interface
	cloud *cloud.Cloud
	// more are further cloudcores.
	more  []*cloud.Cloud
	cable *proxy.Proxy
	stops ending
}

// siteOptions configure a fixture.
type siteOptions struct {
	cluster kube.Options
	// hub and modules are additional keys of cloudcore's configuration.
	hub, modules map[string]any
	// address is where nodes reach cloudcore; empty is 127.0.0.1.
	address string
}

// newSite starts everything; the caller ends it, also after an error.
func newSite(ctx context.Context, o options, site siteOptions) (*fixture, error) {
	s := &fixture{opts: o}
	var err error
	if s.dir, err = os.MkdirTemp("", "edgecore-bench-link-"); err != nil {
		return s, err
	}
	s.stops.add(func(context.Context) error { return os.RemoveAll(s.dir) })
	say("starting a cluster")
	if s.kube, err = kube.Launch(ctx, site.cluster); err != nil {
		return s, err
	}
	s.stops.add(s.kube.Stop)
	s.api = s.kube.Client()
	if err := s.install(ctx); err != nil {
		return s, err
	}
	kubeconfig, err := s.kube.AddServiceAccount(ctx, "kubeedge", "cloudcore")
	if err != nil {
		return s, err
	}
	say("starting a cloudcore")
	if s.cloud, err = cloud.New(cloud.Options{
		Binary:     o.cloud,
		Dir:        filepath.Join(s.dir, "cloud"),
		Kubeconfig: kubeconfig,
		Address:    site.address,
		Hub:        site.hub,
		Modules:    site.modules,
		Profiling:  true,
	}); err != nil {
		return s, err
	}
	s.stops.add(s.cloud.Stop)
	if err := s.cloud.Start(ctx); err != nil {
		return s, err
	}
	if s.cable, err = proxy.Start(hubPort(s.cloud)); err != nil {
		return s, err
	}
	s.stops.add(func(context.Context) error { return s.cable.Close() })
	return s, nil
}

// hubPort is the address of a cloudcore's WebSockets.
func hubPort(c *cloud.Cloud) string { return net.JoinHostPort(c.Address, strconv.Itoa(c.Link)) }

// install applies what a cluster needs for cloudcore.
func (s *fixture) install(ctx context.Context) error {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	deploy := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "deploy", "cloudcore")
	for _, args := range [][]string{{"-k", "setup"}, {"-f", "base/rbac.yaml"}} {
		if out, err := s.kube.Kubectl(ctx, "apply", args[0], filepath.Join(deploy, args[1])); err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
	}
	return nil
}

// namespace makes a namespace in which pods may be, where no controller manager makes the account for them.
func (s *fixture) namespace(ctx context.Context, name string) error {
	_, err := s.api.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	account := &v1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, AutomountServiceAccountToken: new(false),
	}
	_, err = s.api.CoreV1().ServiceAccounts(name).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// memory is the memory of all cloudcores: resident according to the kernel, and live objects and stacks according to
// their metrics.
type memory struct{ rss, anon, heap, stacks, goroutines float64 }

// memoryNow reads the memory of all cloudcores: resident memory as it is, live memory after a garbage collection.
func (s *fixture) memoryNow(ctx context.Context) (sum memory, err error) {
	for _, c := range s.clouds() {
		m, err := memoryOf(ctx, c)
		if err != nil {
			return memory{}, err
		}
		sum = memory{sum.rss + m.rss, sum.anon + m.anon, sum.heap + m.heap, sum.stacks + m.stacks,
			sum.goroutines + m.goroutines}
	}
	return sum, nil
}

func memoryOf(ctx context.Context, c *cloud.Cloud) (memory, error) {
	rss, anon, err := process.Memory(c.PID())
	if err != nil {
		return memory{}, err
	}
	if _, err := c.Get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
		return memory{}, err
	}
	text, err := c.Get(ctx, "/metrics")
	if err != nil {
		return memory{}, err
	}
	m := memory{rss: float64(rss), anon: float64(anon)}
	for name, value := range map[string]*float64{
		"go_memstats_heap_alloc_bytes": &m.heap, "go_memstats_stack_inuse_bytes": &m.stacks,
		"go_goroutines": &m.goroutines,
	} {
		if *value, err = metric(text, name); err != nil {
			return m, err
		}
	}
	return m, nil
}

// resetPeaks makes peaks count from now.
func (s *fixture) resetPeaks() error {
	for _, c := range s.clouds() {
		if err := process.ResetPeak(c.PID()); err != nil {
			return fmt.Errorf("reset the peak of cloudcore's memory: %w", err)
		}
	}
	return nil
}

// peaks returns the peak of each cloudcore's resident memory, summed.
func (s *fixture) peaks() (sum float64, err error) {
	for _, c := range s.clouds() {
		peak, err := process.Peak(c.PID())
		if err != nil {
			return 0, err
		}
		sum += float64(peak)
	}
	return sum, nil
}

// metric reads a metric without labels from a text of Prometheus.
func metric(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("cloudcore has no metric %s", name)
}

// used is the processor time of all cloudcores, of kube-apiserver, of etcd, of this program, which simulates the nodes,
// and of the whole machine, and how long cloudcores waited for a processor.
type used struct{ cloud, api, etcd, edges, machine, waited time.Duration }

func (s *fixture) used() (u used, err error) {
	for _, c := range s.clouds() {
		cpu, waited, err := process.Scheduled(c.PID())
		if err != nil {
			return used{}, err
		}
		u.cloud, u.waited = u.cloud+cpu, u.waited+waited
	}
	if u.api, _, err = process.Usage(s.kube.APIServer.PID()); err != nil {
		return used{}, err
	}
	if u.etcd, _, err = process.Usage(s.kube.Etcd.PID()); err != nil {
		return used{}, err
	}
	if u.edges, _, err = process.Usage(os.Getpid()); err != nil {
		return used{}, err
	}
	u.machine, err = process.Busy()
	return u, err
}

func (u used) since(before used) used {
	return used{
		cloud:   u.cloud - before.cloud,
		api:     u.api - before.api,
		etcd:    u.etcd - before.etcd,
		edges:   u.edges - before.edges,
		machine: u.machine - before.machine,
		waited:  u.waited - before.waited,
	}
}

func (u used) String() string {
	return fmt.Sprintf("%.1f s (kube-apiserver %.1f s, etcd %.1f s, the edges %.1f s, the whole machine %.1f s; "+
		"cloudcore waited %.1f s for a processor)", u.cloud.Seconds(), u.api.Seconds(), u.etcd.Seconds(),
		u.edges.Seconds(), u.machine.Seconds(), u.waited.Seconds())
}

// until asks again and again until it is told yes.
func until(ctx context.Context, what string, patience time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := load.Until(ctx, done); err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}
	return nil
}
