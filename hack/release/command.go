package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// command runs a program and shows what it is and what it prints; env is added to the environment.
func command(ctx context.Context, dir string, env []string, name string, args ...string) error {
	fmt.Println("+", strings.Join(append(append([]string{}, env...), append([]string{name}, args...)...), " "))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, missing(name, err))
	}
	return nil
}

// output runs a program and returns what it prints.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), missing(name, err),
			strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// missing says where a program comes from that is not there.
func missing(name string, err error) error {
	if !errors.Is(err, exec.ErrNotFound) {
		return err
	}
	return fmt.Errorf("there is no %s here; hack/setup cross and hack/setup deb install what is needed: %w", name, err)
}
