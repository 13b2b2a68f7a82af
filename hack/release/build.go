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
	// same.
	cFlags    = "-O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2"
	linkFlags = "-Wl,-z,relro,-z,now"
	// pieLinkFlags link a program that is loaded at a random address. Packed relocations save 3.5 MB of it.
	pieLinkFlags = linkFlags + ",-z,pack-relative-relocs"
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
		if err := checkBinary(r.binary(t), t.pie); err != nil {
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
	return command(ctx, r.source, env, "go", append(r.buildArgs(t.pie), "-o", out, "./cmd/edgecore")...)
}

// buildArgs are those of the go command for a program that needs no library of the device.
func (r *release) buildArgs(pie bool) []string {
	mode, link := "exe", "-static "+linkFlags
	if pie {
		mode, link = "pie", "-static-pie "+pieLinkFlags
	}
	return []string{
		"build", "-trimpath", "-buildmode=" + mode, "-tags", r.tags, "-ldflags",
		r.ldflags() + ` -linkmode external -extldflags "` + link + `"`,
	}
}

// ldflags are those of Go's linker for every program.
func (r *release) ldflags() string {
	return fmt.Sprintf("-s -w -X %s/pkg/version.version=%s -X %s/pkg/version.commit=%s", module, r.version, module,
		r.commit)
}

// checkBinary makes sure that a program needs no library of the device, has no symbols, is hardened and small enough.
func checkBinary(path string, pie bool) error {
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
	if err := checkHardened(f, pie); err != nil {
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

// checkHardened makes sure that a program has no memory that is both writable and executable, that what is relocated
// becomes read-only, and, with pie, that it is loaded at a random address and all of it is relocated before it starts.
func checkHardened(f *elf.File, pie bool) error {
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
	case !pie:
		return nil
	case f.Type != elf.ET_DYN:
		return fmt.Errorf("it is loaded at a fixed address: its type is %v, want %v", f.Type, elf.ET_DYN)
	}
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) != 1 || flags[0]&uint64(elf.DF_1_PIE) == 0 || flags[0]&uint64(elf.DF_1_NOW) == 0 {
		return fmt.Errorf("its DT_FLAGS_1 are %v, %v; want PIE and NOW", flags, err)
	}
	return nil
}
