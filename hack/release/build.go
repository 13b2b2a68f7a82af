package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	module = "github.com/edgecore-io/edgecore"
	// maxSize is the maximum size of the program on a device, in bytes: 34 MB with devices.
	maxSize = 34_000_000
)

// cross builds the programs and lists their parts.
func (r *release) cross(ctx context.Context, targets []target) error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	tool, err := r.buildLister(ctx)
	if err != nil {
		return err
	}
	for _, t := range targets {
		if err := r.build(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if err := checkBinary(r.binary(t)); err != nil {
			return fmt.Errorf("%s: %w", r.binary(t), err)
		}
		if err := r.list(ctx, tool, t); err != nil {
			return fmt.Errorf("parts of %s: %w", r.binary(t), err)
		}
	}
	return nil
}

func (r *release) binary(t target) string { return filepath.Join(r.out, "edgecore-"+t.name) }

// build builds one program. The C compiler is Debian's for that architecture, whichever this machine has.
func (r *release) build(ctx context.Context, t target) error {
	out, err := filepath.Abs(r.binary(t))
	if err != nil {
		return err
	}
	env := append(slices.Clone(t.env), "GOOS=linux", "CGO_ENABLED=1", "CC="+t.triplet+"-gcc", "CGO_CFLAGS=-O2",
		"CGO_LDFLAGS=-O2")
	return command(ctx, r.source, env, "go", "build", "-trimpath", "-tags", r.tags, "-ldflags", r.ldflags(true), "-o",
		out, "./cmd/edgecore")
}

// ldflags are those of the linker; a static program needs the C compiler's.
func (r *release) ldflags(static bool) string {
	flags := fmt.Sprintf("-s -w -X %s/pkg/version.version=%s -X %s/pkg/version.commit=%s", module, r.version, module,
		r.commit)
	if static {
		flags += " -linkmode external -extldflags -static"
	}
	return flags
}

// checkBinary makes sure that a program needs no library of the device, has no symbols, and is small enough.
func checkBinary(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is not static: it asks for a loader of libraries")
		}
	}
	if f.Section(".symtab") != nil {
		return errors.New("it is not stripped: it has a table of symbols")
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("%s: static, stripped, %.1f MB\n", path, float64(info.Size())/1e6)
	if info.Size() > maxSize {
		return fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxSize)
	}
	return nil
}
