// Command dev is `make run` and `make stop`: sample pods under edgecore, on its own containerd or on the one that --cri
// names. Everything it makes is under .run, or carries the name of its containerd.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

const (
	readOnlyPort = 10255
	samplesDir   = "deploy/samples"
	waitForPods  = 3 * time.Minute
	cgroupRoot   = "/edgecore-run"
)

const usage = `dev run [--cri ENDPOINT]   start sample pods under edgecore, with all its files in .run
dev stop                   remove all that run made

Most is easier with make run and make stop.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("dev", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	endpoint := flags.String("cri", "",
		"use the runtime at this `endpoint`, such as unix:///run/containerd/containerd.sock")
	if len(args) == 0 {
		return errors.New("say what to do: run or stop; --help tells more")
	}
	command, rest := args[0], args[1:]
	if strings.HasPrefix(command, "-") {
		rest = args // --help
	}
	if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	dir, err := filepath.Abs(".run")
	if err != nil {
		return err
	}
	d := &dev{dir: dir, endpoint: *endpoint}
	switch command {
	case "run":
		return d.run(ctx)
	case "stop":
		return d.stop(ctx)
	}
	return fmt.Errorf("%q is not what this does: run or stop; --help tells more", command)
}

// dev is one checkout's running agent.
type dev struct {
	dir, endpoint string
}

// record is what stop needs to know; it is kept in .run.
type record struct {
	Agent daemon.Identity
	// Endpoint is that of a foreign runtime; empty if the runtime is ours.
	Endpoint string
}

func say(format string, args ...any) { fmt.Printf("==> "+format+"\n", args...) }

func (d *dev) recordFile() string { return filepath.Join(d.dir, "run.json") }

func (d *dev) load() (record, error) {
	var r record
	data, err := os.ReadFile(d.recordFile())
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

func (d *dev) save(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(d.recordFile(), data, 0o644)
}

// name is that of this checkout's containerd: the same each time.
func (d *dev) name() string {
	sum := sha256.Sum256([]byte(d.dir))
	return containerd.Name([4]byte(sum[:4]))
}

func (d *dev) run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("running containers needs root: sudo make run")
	}
	r, err := d.load()
	if err != nil {
		return err
	}
	if old := daemon.Known(r.Agent); old != nil {
		say("edgecore runs already; restarting it with this build (its pods run on)")
		if err := old.End(ctx, syscall.SIGTERM); err != nil {
			return err
		}
	}
	if err := portIsFree(); err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	endpoint, root, err := d.runtime(ctx)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	binary, err := filepath.Abs(filepath.Join("bin", "edgecore"))
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Options{
		Binary:     binary,
		Dir:        d.dir,
		NodeName:   strings.ToLower(host),
		Endpoint:   endpoint,
		CgroupRoot: root,
		Port:       readOnlyPort,
	})
	if err != nil {
		return err
	}
	if err := copySamples(a); err != nil {
		return err
	}
	say("starting edgecore: bin/edgecore --config %s", a.Config())
	if err := a.Start(ctx); err != nil {
		return err
	}
	if err := d.save(record{Agent: a.Identity(), Endpoint: d.endpoint}); err != nil {
		return err
	}
	if err := watch(ctx, a); err != nil {
		return err
	}
	return show(ctx, a)
}

// portIsFree reports early if a port is taken, and by whom.
func portIsFree() error {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(readOnlyPort))
	if err != nil {
		return fmt.Errorf("port %d is in use (a kubelet, or another edgecore?): end that program first (`make stop` "+
			"in its checkout): %w", readOnlyPort, err)
	}
	return l.Close()
}

// runtime starts a containerd, or takes the one that was named, and loads the images.
func (d *dev) runtime(ctx context.Context) (endpoint, root string, err error) {
	if d.endpoint != "" {
		say("using the runtime at %s", d.endpoint)
		socket, err := cri.SocketPath(d.endpoint)
		if err != nil {
			return "", "", err
		}
		client, err := cri.Dial(d.endpoint, "", 30*time.Second)
		if err != nil {
			return "", "", err
		}
		defer client.Close()
		say("loading the sandbox image and the demo image, built here from busybox")
		if err := containerd.LoadImages(ctx, client, socket, "ctr"); err != nil {
			return "", "", err
		}
		return d.endpoint, cgroupRoot, ensureSandboxImage(ctx, client, socket)
	}
	instance, err := containerd.Attach(d.name())
	if err != nil {
		say("starting a containerd of our own, %s", d.name())
		if instance, err = containerd.Start(ctx, containerd.Options{
			Name: d.name(), Root: filepath.Join(d.dir, "containerd"), Detached: true,
		}); err != nil {
			return "", "", err
		}
	} else if !instance.Running() {
		say("starting our containerd again, %s", d.name())
		if err := instance.Run(ctx); err != nil {
			return "", "", err
		}
	}
	say("loading the sandbox image and the demo image, built here from busybox")
	return instance.Endpoint(), instance.CgroupRoot(), instance.LoadImages(ctx)
}

func copySamples(a *agent.Agent) error {
	files, err := filepath.Glob(filepath.Join(samplesDir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := a.WriteManifest(filepath.Base(f), string(data)); err != nil {
			return err
		}
	}
	say("%d sample manifests are in %s; change them, or add your own", len(files), a.Manifests())
	return nil
}

// watch shows the pods starting.
func watch(ctx context.Context, a *agent.Agent) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, waitForPods)
	defer cancel()
	last := ""
	err := daemon.Poll(ctx, func() error {
		pods, err := a.Pods(ctx)
		if err != nil {
			return err
		}
		up := 0
		for _, p := range pods {
			if p.Status.Phase == v1.PodRunning || p.Status.Phase == v1.PodSucceeded {
				up++
			}
		}
		if text := fmt.Sprintf("%d of %d pods are up", up, len(pods)); text != last {
			say("%4.1f s: %s", time.Since(began).Seconds(), text)
			last = text
		}
		if len(pods) == 0 || up < len(pods) {
			return fmt.Errorf("not all pods are up; `bin/edgecore get events --config %s` says why", a.Config())
		}
		return nil
	})
	return err
}

func show(ctx context.Context, a *agent.Agent) error {
	table, err := a.Run(ctx, "get", "pods", "-o", "wide")
	if err != nil {
		return err
	}
	fmt.Printf("\n$ bin/edgecore get pods -o wide --config .run/edgecore.yaml\n%s", table)
	url := fmt.Sprintf("http://127.0.0.1:%d/pods", readOnlyPort)
	out, err := exec.CommandContext(ctx, "curl", "-sS", url).Output()
	if err != nil {
		return fmt.Errorf("curl %s: %w", url, err)
	}
	fmt.Printf("\n$ curl %s\n%.300s ...\n", url, out)
	fmt.Print(`
Try:  curl http://127.0.0.1:8088/
      bin/edgecore status --config .run/edgecore.yaml
      bin/edgecore logs clock-` + a.NodeName + ` -c reader -f --config .run/edgecore.yaml
      make stop     removes everything again
`)
	return nil
}

func (d *dev) stop(ctx context.Context) error {
	r, err := d.load()
	if err != nil {
		return err
	}
	if old := daemon.Known(r.Agent); old != nil {
		say("stopping edgecore")
		if err := old.End(ctx, syscall.SIGTERM); err != nil {
			return err
		}
	}
	if r.Endpoint != "" {
		say("removing our pods from the runtime at %s, which runs on", r.Endpoint)
		if err := d.removePods(ctx, r.Endpoint); err != nil {
			return err
		}
	}
	if instance, err := containerd.Attach(d.name()); err == nil {
		say("removing containerd %s with its pods, mounts, bridge and cgroups", d.name())
		if err := instance.Stop(ctx); err != nil {
			return err
		}
		if left := instance.Leaks(ctx); len(left) > 0 {
			return fmt.Errorf("this is left: %s", strings.Join(left, ", "))
		}
	}
	if err := agent.Unmount(d.dir); err != nil {
		return err
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return err
	}
	say("all is removed")
	return nil
}

// removePods removes those pods whose cgroup is below ours.
func (d *dev) removePods(ctx context.Context, endpoint string) error {
	client, err := cri.Dial(endpoint, "", time.Minute)
	if err != nil {
		return err
	}
	defer client.Close()
	ours := map[string]bool{}
	entries, err := os.ReadDir(filepath.Join(d.dir, "root", "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		ours[e.Name()] = true
	}
	if err := containerd.RemovePods(ctx, client, func(s *runtimeapi.PodSandbox) bool {
		return ours[s.Metadata.GetUid()]
	}); err != nil {
		return err
	}
	return cgroups.New(cgroups.Options{Root: cgroupRoot, PerQOS: true}).RemoveAll()
}
