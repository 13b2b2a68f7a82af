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

	// cFlags and linkFlags harden the C part, which is SQLite reading a file of a disk that may have been written
	// elsewhere: overflows of buffers end the program, and tables of addresses cannot be written. The Makefile has the
	// same. The program is loaded at a fixed address (-buildmode=exe): at a random one, relocated tables take 3.2 MB
	// of anonymous memory, a quarter of what an idle agent has. What the store does not use of SQLite is left out: the
	// functions for JSON, and full-text search and R-trees (0.17 MB). Go's package for SQLite defines the macros of
	// these after CGO_CFLAGS; what -Wp passes on counts last. Each C function is in a section of its own, so that the
	// linker leaves out those that nothing calls (0.06 MB). It is compiled for its size, which takes 0.28 MB less and
	// is as fast in the benchmarks of the store, and without tables for unwinding, which only C++ and debuggers use
	// (0.08 MB).
	cFlags = "-Os -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables " +
		"-fstack-protector-strong -D_FORTIFY_SOURCE=2 -DSQLITE_OMIT_JSON " +
		"-Wp,-USQLITE_ENABLE_FTS3,-USQLITE_ENABLE_FTS3_PARENTHESIS,-USQLITE_ENABLE_RTREE"
	linkFlags = "-Wl,--gc-sections,-z,relro,-z,now"
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
	env := append(slices.Clone(t.env), "GOOS=linux", "CGO_ENABLED=1", "CC="+t.triplet+"-gcc", "CGO_CFLAGS="+cFlags,
		"CGO_LDFLAGS=-O2")
	return command(ctx, r.source, env, "go", append(r.buildArgs(), "-o", out, "./cmd/edgecore")...)
}

// buildArgs are those of the go command for a program that needs no library of the device.
func (r *release) buildArgs() []string {
	return []string{
		"build", "-trimpath", "-tags", r.tags, "-ldflags",
		r.ldflags() + ` -linkmode external -extldflags "-static ` + linkFlags + `"`,
	}
}

// ldflags are those of Go's linker for every program.
func (r *release) ldflags() string {
	return fmt.Sprintf("-s -w -X %s/pkg/version.version=%s -X %s/pkg/version.commit=%s", module, r.version, module,
		r.commit)
}

// checkBinary makes sure that a program needs no library of the device, has no symbols, is hardened and small enough.
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
	if err := checkHardened(f); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("%s: static, stripped, hardened, %.1f MB\n", path, float64(info.Size())/1e6)
	if info.Size() > maxSize {
		return fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxSize)
	}
	return nil
}

// checkHardened makes sure that a program has no memory that is both writable and executable, and that what is
// relocated becomes read-only.
func checkHardened(f *elf.File) error {
	relro, stack := false, false
	for _, p := range f.Progs {
		writable := p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0
		switch {
		case writable && p.Type == elf.PT_LOAD:
			return errors.New("it has memory that is both writable and executable")
		case p.Type == elf.PT_GNU_STACK:
			stack = p.Flags&elf.PF_X == 0
		case p.Type == elf.PT_GNU_RELRO:
			relro = true
		}
	}
	switch {
	case !stack:
		return errors.New("its stack is executable")
	case !relro:
		return errors.New("what is relocated stays writable: it has no PT_GNU_RELRO")
	}
	return nil
}
