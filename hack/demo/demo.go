package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/metricsserver"
	"github.com/edgecore-io/edgecore/test/testenv/modbusserver"
	"github.com/edgecore-io/edgecore/test/testenv/nat"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

// removeTimeout is the timeout for removing everything.
const removeTimeout = 3 * time.Minute

// errInterrupted: the demo was asked to stop.
var errInterrupted = errors.New("interrupted")

// demo holds everything that runs. Parts that have not started yet are nil.
type demo struct {
	options
	*narrator

	kube    *kube.Cluster
	metrics *metricsserver.Server
	cloud   *cloud.Cloud
	// network is the device's network behind NAT. The cables are its only ways to cloudcore: one for the link, one for
	// certificates.
	network *nat.Network
	cables  []*proxy.Proxy
	ctrd    *containerd.Instance
	cri     *cri.Client
	edge    *agent.Agent
	sensor  *modbusserver.Server
	// mapperLog is the log of the sensor's mapper.
	mapperLog string

	// undo holds the functions that remove what was made; the last runs first.
	undo []func(context.Context) error
}

// play runs the whole story, and removes everything afterwards, even after a failure.
func play(ctx context.Context, o options) error {
	for _, binary := range []string{o.edgecore, o.cloudcore} {
		if _, err := os.Stat(binary); err != nil {
			return fmt.Errorf("%w: `make build` makes it", err)
		}
	}
	d := &demo{options: o, narrator: &narrator{out: os.Stdout, began: time.Now()}}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	err := d.tell(ctx)
	if err == nil && o.keep {
		d.keepRunning(ctx)
	}
	interrupted := err != nil && ctx.Err() != nil
	if interrupted {
		err = nil // it is only what was in the way
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), daemon.Scaled(removeTimeout))
	defer cancel()
	switch {
	case interrupted:
		d.say("Interrupted. Removing everything that was made so far.")
	case err != nil:
		d.say("This went wrong: %v", err)
		d.say("Removing everything but the logs.")
		d.keepLogs()
	default:
		d.title("Remove everything")
	}
	removed := d.remove(ctx, err != nil)
	if removed == nil {
		d.say("All is removed: processes, pods, mounts, network and files.")
	}
	if err != nil {
		err = fmt.Errorf("the demo has failed, see above; the logs are in %s", shown(d.logs()))
	}
	if err = errors.Join(err, removed); err == nil && interrupted {
		err = errInterrupted
	}
	return err
}

// prepare makes the folder.
func (d *demo) prepare(ctx context.Context) error {
	if err := clear(ctx, d.dir); err != nil {
		return err
	}
	for _, dir := range []string{d.bin(), d.wrapped()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	owner, err := daemon.Identify(os.Getpid())
	if err != nil {
		return err
	}
	for name, target := range map[string]string{"edgecore": d.edgecore, "cloudcore": d.cloudcore} {
		if err := os.Symlink(target, filepath.Join(d.bin(), name)); err != nil {
			return err
		}
	}
	d.env = []string{"PATH=" + d.bin() + ":" + os.Getenv("PATH"), "KUBECONFIG=" + d.kubeconfig(),
		"KUBECACHEDIR=" + filepath.Join(d.dir, "kubectl-cache")}
	return (&record{Owner: owner}).save(d.dir)
}

// bin is the folder of the programs that the demo runs. Those in the folder wrapped run in the device's network.
func (d *demo) bin() string     { return filepath.Join(d.dir, "bin") }
func (d *demo) wrapped() string { return filepath.Join(d.dir, "wrapped") }

func (d *demo) kubeconfig() string { return filepath.Join(d.dir, "kubeconfig") }

// logs is where the logs lie after a failure.
func (d *demo) logs() string { return filepath.Join(d.dir, "logs") }

// later adds a function that removes what was just made.
func (d *demo) later(undo func(context.Context) error) { d.undo = append(d.undo, undo) }

// remove removes everything; it continues after errors to leave as little as possible.
func (d *demo) remove(ctx context.Context, keepLogs bool) error {
	var errs []error
	for _, undo := range slices.Backward(d.undo) {
		errs = append(errs, undo(ctx))
	}
	if keepLogs {
		return errors.Join(append(errs, agent.Unmount(d.dir),
			d.removeAllBut("logs", filepath.Base(recordFile(d.dir))))...)
	}
	return errors.Join(append(errs, removeFolder(d.dir))...)
}

func (d *demo) removeAllBut(names ...string) error {
	entries, err := os.ReadDir(d.dir)
	errs := []error{err}
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(d.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// keepLogs copies all logs to one folder. It reports what cannot be copied.
func (d *demo) keepLogs() {
	var files []string
	if d.edge != nil {
		files = append(files, d.edge.Log())
	}
	if d.mapperLog != "" {
		files = append(files, d.mapperLog)
	}
	if d.ctrd != nil {
		files = append(files, d.ctrd.LogFile())
	}
	if d.metrics != nil {
		files = append(files, d.metrics.Log())
	}
	if d.cloud != nil {
		files = append(files, d.cloud.Log())
	}
	if d.kube != nil {
		for _, p := range []*kube.Component{d.kube.Etcd, d.kube.APIServer, d.kube.ControllerManager, d.kube.Scheduler} {
			files = append(files, p.Log())
		}
	}
	err := os.MkdirAll(d.logs(), 0o755)
	for _, f := range files {
		err = errors.Join(err, copyFile(filepath.Join(d.logs(), filepath.Base(f)), f))
	}
	if err != nil {
		d.say("Not all logs could be kept: %v", err)
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// until waits for a check to succeed; its error names what it waited for.
func (d *demo) until(ctx context.Context, limit time.Duration, what string, check func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, daemon.Scaled(limit), fmt.Errorf("not within %v", limit))
	defer cancel()
	if err := daemon.Poll(ctx, check); err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// keepRunning waits until it is told to stop, and cuts and mends the cable on command.
func (d *demo) keepRunning(ctx context.Context) {
	d.title("All of it runs on, until Ctrl-C here or `make demo-stop`")
	d.say("To use it from another terminal:")
	d.say("  cd %s\n  export PATH=%s:$PATH KUBECONFIG=%s", workingFolder(), quote(d.bin()),
		quote(d.kubeconfig()))
	d.say("Then, for example:")
	d.say(`  kubectl get pods -o wide
  kubectl scale deployment/web --replicas=5
  kubectl port-forward deployment/web 8080:80    # the page, at http://localhost:8080
  device edgecore status --config %[1]s
  device edgecore get events --config %[1]s
  device sh                                      # a shell in the device's network
  tail -f %s %s`, shown(d.edge.Config()), shown(d.edge.Log()), shown(d.cloud.Log()))
	d.say("Here, the word cut (and Enter) cuts the link, and mend mends it.")
	// It ends with this program: a read of a terminal cannot be interrupted.
	go d.runCommands(os.Stdin)
	<-ctx.Done()
}

func workingFolder() string {
	wd, err := os.Getwd()
	if err != nil {
		return "."
	}
	return quote(wd)
}

// runCommands carries out commands, one a line.
func (d *demo) runCommands(in io.Reader) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch word := strings.TrimSpace(lines.Text()); word {
		case "":
		case "cut":
			d.cable(proxy.Cut)
			fmt.Fprintln(d.out, "The link is cut. In some 20 s the cluster calls the node NotReady; the pods run on.")
		case "mend":
			d.cable(proxy.Passing)
			fmt.Fprintln(d.out,
				"The link is mended. The device dials again within a minute, sooner if it was cut for a short time.")
		default:
			fmt.Fprintf(d.out, "%q: want cut or mend (Ctrl-C ends the demo)\n", word)
		}
	}
}

// cable cuts or mends every way between device and cloud.
func (d *demo) cable(state proxy.State) {
	for _, c := range d.cables {
		c.Set(state)
	}
}
