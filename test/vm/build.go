package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildTest builds the test binary of a package ("./edged/cgroups"). It runs where a machine has the C
// library of this one: both are Debian.
func BuildTest(ctx context.Context, target, pkg string) error {
	return goCommand(ctx, nil, "test", "-c", "-o", target, pkg)
}

// goCommand runs the go command in the module's folder.
func goCommand(ctx context.Context, env []string, args ...string) error {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(mod)))
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
