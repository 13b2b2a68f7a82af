package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

// programs are built once for all tests.
type programs struct{ demo, edgecore, cloudcore string }

var built programs

func TestMain(m *testing.M) {
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

func buildAll(dir string) (err error) {
	if built.edgecore, err = agent.Build(context.Background(), dir); err != nil {
		return err
	}
	if built.cloudcore, err = cloud.Build(context.Background(), dir); err != nil {
		return err
	}
	built.demo = filepath.Join(dir, "demo")
	if out, err := exec.Command("go", "build", "-o", built.demo, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("build the demo: %w\n%s", err, out)
	}
	return nil
}
