// Command suite runs the tests of the project: the short suite of `make test`, and the areas of `make test-all`. It
// runs packages in parallel up to the number of cores, fails if a test that shows a promise did not run, and prints
// what was covered and how long each package took.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/nat"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the suite at once
	flag.Usage = usage
	list := flag.Bool("list", false, "print the commands, and run nothing")
	var o options
	flag.BoolVar(&o.full, "full", false, "with vm: every machine, arm64 too, 25 power cuts (hours)")
	flag.Int64Var(&o.seed, "seed", 1,
		"the seed of random faults, pods and power cuts; the same seed makes the same ones")
	flag.Parse()
	if err := run(ctx, flag.Args(), o, *list); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		stop()
		os.Exit(1)
	}
}

func usage() {
	out := flag.CommandLine.Output()
	_, _ = fmt.Fprint(out, "usage: go run ./hack/suite [flags] short|all|AREA...\n\n")
	for _, a := range append([]area{short(nil)}, areas(options{})...) {
		_, _ = fmt.Fprintf(out, "  %-12s %s\n", a.name, a.about)
	}
	_, _ = fmt.Fprintf(out, "  %-12s every area but short, one after another\n\n", "all")
	flag.PrintDefaults()
}

func run(ctx context.Context, names []string, o options, list bool) error {
	chosen, err := choose(ctx, names, o)
	if err != nil {
		return err
	}
	var failed []string
	for _, a := range chosen {
		if list {
			for _, line := range a.commands() {
				fmt.Println(line)
			}
			continue
		}
		if err := runArea(ctx, a); err != nil {
			fmt.Printf("==> %s failed: %v\n", a.name, err)
			failed = append(failed, a.name)
		}
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// choose returns the areas of some names.
func choose(ctx context.Context, names []string, o options) ([]area, error) {
	if len(names) == 0 {
		return nil, errors.New("say what to run: short, all, or areas; -help lists them")
	}
	all := areas(o)
	var chosen []area
	for _, name := range names {
		switch i := slices.IndexFunc(all, func(a area) bool { return a.name == name }); {
		case name == "all":
			chosen = append(chosen, all...)
		case name == shortName:
			units, err := unitPackages(ctx)
			if err != nil {
				return nil, err
			}
			chosen = append(chosen, short(units))
		case i < 0:
			return nil, fmt.Errorf("no area %q; -help lists them", name)
		default:
			chosen = append(chosen, all[i])
		}
	}
	return chosen, nil
}

// unitPackages lists the packages with tests that are not integration suites.
func unitPackages(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}",
		"./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	return units(strings.Fields(string(out))), nil
}

// runArea runs the preparations of an area and then its jobs.
func runArea(ctx context.Context, a area) error {
	began := time.Now()
	fmt.Printf("==> %s: %s\n", a.name, a.about)
	for _, before := range a.before {
		if err := command(ctx, before); err != nil {
			return err
		}
	}
	dir, env, err := programs(ctx, a.raced)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if a.name == shortName { // other areas run KubeEdge's programs, whose ports are fixed
		ports, err := defaultPorts()
		if err != nil {
			return err
		}
		release, err := holdPorts(ports)
		if err != nil {
			return err
		}
		defer release()
		fmt.Printf("    ports of the default configurations, which no test may listen on: %d\n", ports)
	}
	r := runJobs(ctx, a.jobs, env, runtime.NumCPU())
	if ctx.Err() != nil {
		return sweep(ctx, dir)
	}
	for _, after := range a.after {
		r.commands = append(r.commands, commandResult{after, command(ctx, after)})
	}
	fmt.Print(r.report(a, time.Since(began)))
	return r.verdict(a)
}

// sweep removes what interrupted tests left: processes of the programs in dir, containerds, clusters and networks.
func sweep(ctx context.Context, dir string) error {
	fmt.Println("==> interrupted: removing what the tests have started")
	ctx, cancel := daemon.Within(context.WithoutCancel(ctx))
	defer cancel()
	return errors.Join(errors.New("interrupted"), endPrograms(ctx, dir), containerd.Sweep(ctx), kube.Sweep(),
		nat.Sweep(ctx))
}

// endPrograms kills the processes whose program is in a folder.
func endPrograms(ctx context.Context, dir string) error {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return err
	}
	var errs []error
	for _, link := range links {
		program, err := os.Readlink(link)
		if err != nil || filepath.Dir(program) != dir {
			continue // it has exited, or belongs to another suite
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return err
		}
		id, err := daemon.Identify(pid)
		if err != nil {
			continue // it has exited
		}
		errs = append(errs, daemon.Known(id).End(ctx, syscall.SIGKILL))
	}
	return errors.Join(errs...)
}

// command runs one preparation, with its output, and says what it runs.
func command(ctx context.Context, line string) error {
	fmt.Println(line)
	words := strings.Fields(line)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	endWithContext(cmd)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	return nil
}

// programs builds edgecore and cloudcore once for all jobs, and returns their folder, which the caller removes, and the
// environment that hands them to the tests.
func programs(ctx context.Context, raced bool) (dir string, env []string, err error) {
	if dir, err = os.MkdirTemp("", "edgecore-suite-"); err != nil {
		return "", nil, err
	}
	for _, p := range []struct{ name, tags, env string }{
		{"edgecore", agent.Tags, agent.BinaryEnv},
		{"cloudcore", "", cloud.BinaryEnv},
	} {
		path := filepath.Join(dir, p.name)
		line := fmt.Sprintf("go build -tags=%s -o %s ./cmd/%s", p.tags, path, p.name)
		if raced {
			line = strings.Replace(line, "go build", "go build -race", 1)
		}
		if err := command(ctx, line); err != nil {
			return "", nil, errors.Join(err, os.RemoveAll(dir))
		}
		env = append(env, p.env+"="+path)
	}
	return dir, env, nil
}
