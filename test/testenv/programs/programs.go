// Package programs builds edgecore and cloudcore once for all tests of a test binary, or takes those that flags name.
package programs

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
)

// Set is the paths of the programs, once Run has begun.
type Set struct{ Edge, Cloud string }

// Flags declares -edgecore and -cloudcore.
func Flags() *Set {
	s := &Set{}
	flag.StringVar(&s.Edge, "edgecore", "", "the edgecore to test; built if empty")
	flag.StringVar(&s.Cloud, "cloudcore", "", "the cloudcore to test; built if empty")
	return s
}

// Run builds what no flag names and runs the tests. It returns the exit code.
func (s *Set) Run(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "edgecore-test-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if s.Edge == "" {
		s.Edge, err = agent.Build(context.Background(), dir)
	}
	if s.Cloud == "" && err == nil {
		s.Cloud, err = cloud.Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
