package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var (
	built = programs.Flags()
	// demoProgram is the path of the program under test.
	demoProgram string
	long        = flag.Bool("long", false,
		"tell the whole story, and kill a demo; else only its start, its failure and its end are tested")
)

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "edgecore-test-bin-")
	if err == nil {
		err = buildAll(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := leak.Run(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// buildAll builds what no flag names.
func buildAll(dir string) (err error) {
	if built.Edge == "" {
		if built.Edge, err = agent.Build(context.Background(), dir); err != nil {
			return err
		}
	}
	if built.Cloud == "" {
		if built.Cloud, err = cloud.Build(context.Background(), dir); err != nil {
			return err
		}
	}
	demoProgram = filepath.Join(dir, "demo")
	if out, err := exec.Command("go", "build", "-o", demoProgram, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("build the demo: %w\n%s", err, out)
	}
	return nil
}

// needsLong skips a test unless -long is given.
func needsLong(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("it takes minutes; -long runs it")
	}
}
