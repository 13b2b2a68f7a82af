// Package kubeedge runs KubeEdge's own edgecore and cloudcore, built from the modules under test/kubeedge: what
// edgecore and cloudcore have to work with, and take over from.
package kubeedge

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

// Versions are those that the tests have, the oldest and the newest that are to work.
func Versions() []string { return []string{"1.12", "1.23"} }

const module = "github.com/kubeedge/kubeedge"

// Build returns the paths of edgecore and cloudcore of a version. EDGECORE_TEST_KUBEEDGE_1_23_EDGECORE and its like
// name ones that were built before.
func Build(ctx context.Context, version string, progress io.Writer) (edge, cloud string, err error) {
	build := func(name, target string) (string, error) {
		return pinned.Program{
			Env:    "EDGECORE_TEST_KUBEEDGE_" + strings.ToUpper(strings.ReplaceAll(version, ".", "_")+"_"+name),
			Name:   "kubeedge-" + version + "-" + name,
			Folder: filepath.Join("kubeedge", version),
			Target: module + "/" + target,
			Cgo:    true,
			Takes:  "5 minutes",
		}.Build(ctx, progress)
	}
	if edge, err = build("edgecore", "edge/cmd/edgecore"); err != nil {
		return "", "", err
	}
	cloud, err = build("cloudcore", "cloud/cmd/cloudcore")
	return edge, cloud, err
}

// source is the folder of a version's files.
func source(ctx context.Context, version string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/edgecore-io/edgecore").
		Output()
	if err != nil {
		return "", fmt.Errorf("find the folder of the module edgecore: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = filepath.Join(strings.TrimSpace(string(root)), "test", "kubeedge", version)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	dir, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the files of KubeEdge %s: %w", version, err)
	}
	return strings.TrimSpace(string(dir)), nil
}

// settings are a configuration with keys set again; a key's path is its names with dots between.
type settings map[string]any

// write fills a program's default configuration in and writes it.
func (s settings) write(ctx context.Context, binary, path string) error {
	text, err := exec.CommandContext(ctx, binary, "--defaultconfig").Output()
	if err != nil {
		return fmt.Errorf("%s --defaultconfig: %w", binary, err)
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s --defaultconfig: %w", binary, err)
	}
	for key, value := range s {
		set(config, strings.Split(key, "."), value)
	}
	if text, err = yaml.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func set(in map[string]any, path []string, value any) {
	if len(path) == 1 {
		in[path[0]] = value
		return
	}
	below, is := in[path[0]].(map[string]any)
	if !is {
		below = map[string]any{}
		in[path[0]] = below
	}
	set(below, path[1:], value)
}
