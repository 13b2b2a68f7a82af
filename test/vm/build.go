package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildTest builds the test binary of a package ("./edged/containers/cgroups"). It runs where a machine has the C
// library of this one: both are Debian.
func BuildTest(ctx context.Context, target, pkg string) error {
	return goCommand(ctx, nil, "test", "-c", "-o", target, pkg)
}

// BuildPackage builds the Debian package of an architecture and returns its path.
func BuildPackage(ctx context.Context, arch string) (string, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	if err := command(ctx, "make", "-C", root, "deb", "ARCH="+arch); err != nil {
		return "", err
	}
	deb, err := filepath.EvalSymlinks(filepath.Join(root, "bin", "edgecore_"+arch+".deb"))
	if err != nil {
		return "", fmt.Errorf("make deb ARCH=%s: %w", arch, err)
	}
	return deb, nil
}

// Next is how a package differs from the one that it is made from.
type Next struct {
	// Version is added to the version, so that dpkg takes the package for newer.
	Version string
	// Program takes the place of edgecore; empty: it stays.
	Program string
}

// NextPackage makes of a package the one of a version that follows it.
func NextPackage(ctx context.Context, deb, dir string, next Next) (string, error) {
	content, target := filepath.Join(dir, "content"+next.Version), filepath.Join(dir, "edgecore"+next.Version+".deb")
	if err := command(ctx, "dpkg-deb", "-R", deb, content); err != nil {
		return "", err
	}
	control := filepath.Join(content, "DEBIAN", "control")
	text, err := os.ReadFile(control)
	if err != nil {
		return "", err
	}
	newer, found := nextVersion(string(text), next.Version)
	if !found {
		return "", fmt.Errorf("%s: its control file names no version", deb)
	}
	if err := os.WriteFile(control, []byte(newer), 0o644); err != nil {
		return "", err
	}
	if next.Program != "" {
		if err := command(ctx, "install", "-m", "0755", next.Program, content+"/usr/bin/edgecore"); err != nil {
			return "", err
		}
	}
	return target, command(ctx, "dpkg-deb", "--root-owner-group", "-Zgzip", "-b", content, target)
}

// nextVersion adds to the version in a control file.
func nextVersion(control, more string) (string, bool) {
	lines := strings.Split(control, "\n")
	for i, line := range lines {
		if version, found := strings.CutPrefix(line, "Version: "); found {
			lines[i] = "Version: " + version + more
			return strings.Join(lines, "\n"), true
		}
	}
	return control, false
}

func moduleRoot(ctx context.Context) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(mod))), nil
}

// goCommand runs the go command in the module's folder.
func goCommand(ctx context.Context, env []string, args ...string) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
