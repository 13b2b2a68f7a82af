package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"text/template"
)

// debianDir has what the package is made of, beside the program.
const debianDir = "deploy/debian"

// control are the fields that differ from one package to the next.
type control struct {
	Version, Architecture string
	InstalledSize         int
	// Release and Commit are the program's own words; Date is in the form of mails.
	Release, Commit, Date string
}

// packages makes the packages of programs that are built.
func (r *release) packages(ctx context.Context, targets []target) error {
	host, err := r.hostProgram(ctx, targets)
	if err != nil {
		return err
	}
	version := debianVersion(r.version, r.made)
	for _, t := range targets {
		files, err := r.content(ctx, t, host)
		if err != nil {
			return fmt.Errorf("package for %s: %w", t.debian, err)
		}
		c := control{
			Version: version, Architecture: t.debian, Release: r.version, Commit: r.commit,
			Date: r.made.Format("Mon, 02 Jan 2006 15:04:05 -0700"),
		}
		if err := r.describe(files, c); err != nil {
			return fmt.Errorf("package for %s: %w", t.debian, err)
		}
		if err := r.pack(ctx, t, files, "edgecore_"+version+"_"+t.debian+".deb"); err != nil {
			return fmt.Errorf("package for %s: %w", t.debian, err)
		}
	}
	return nil
}

// hostProgram is edgecore for this machine, which prints its manual and what shells complete.
func (r *release) hostProgram(ctx context.Context, targets []target) (string, error) {
	for _, t := range targets {
		if t.name == runtime.GOARCH {
			return filepath.Abs(r.binary(t))
		}
	}
	program := filepath.Join(r.work, "edgecore")
	return program, command(ctx, r.source, []string{"CGO_ENABLED=1"}, "go", "build", "-trimpath", "-tags", r.tags,
		"-ldflags", r.ldflags(), "-o", program, "./cmd/edgecore")
}

// content returns all files that the package installs.
func (r *release) content(ctx context.Context, t target, host string) (tree, error) {
	const doc = "usr/share/doc/edgecore/"
	files := tree{
		// What is secret is readable for root only, and what is in these folders is.
		"etc/edgecore/manifests/": {mode: 0o755},
		"var/lib/edgecore/":       {mode: 0o700},
	}
	program, err := os.ReadFile(r.binary(t))
	if err != nil {
		return nil, err
	}
	files["usr/bin/edgecore"] = entry{program, 0o755}
	from := filepath.Join(r.source, debianDir)
	if err := errors.Join(
		files.copyFiles(filepath.Join(r.source, "deploy/systemd"), "usr/lib/systemd/system", "edgecore.service"),
		files.copyFiles(from, "usr/share/edgecore", "edgecore.yaml"),
		files.copyFiles(from, doc, "copyright"),
		files.copyFiles(from, doc+"examples", "examples/10-bridge.conflist", "examples/journald.conf",
			"examples/web.yaml"),
		files.copyFiles(r.source, doc, "docs/install.md"),
	); err != nil {
		return nil, err
	}
	overrides, err := os.ReadFile(filepath.Join(from, "lintian-overrides"))
	if err != nil {
		return nil, err
	}
	files.add("usr/share/lintian/overrides/edgecore", overrides)
	notices, err := r.notices(ctx, r.binary(t))
	if err != nil {
		return nil, err
	}
	parts, err := os.ReadFile(r.parts(t))
	if err != nil {
		return nil, err
	}
	return files, errors.Join(
		files.compressed(doc+"third-party-licences", notices),
		files.compressed(doc+"edgecore.cdx.json", parts),
		r.manual(ctx, files, host),
	)
}

// manual adds the manual pages and what shells complete; the program prints both.
func (r *release) manual(ctx context.Context, files tree, host string) error {
	dir := filepath.Join(r.work, "man")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if _, err := output(ctx, r.source, nil, host, "man", "--date", r.made.Format("2006-01-02"), dir); err != nil {
		return err
	}
	pages, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(pages) == 0 {
		return errors.New("the program has no manual pages")
	}
	for _, page := range pages {
		data, err := os.ReadFile(filepath.Join(dir, page.Name()))
		if err != nil {
			return err
		}
		if err := files.compressed("usr/share/man/man8/"+page.Name(), data); err != nil {
			return err
		}
	}
	for shell, at := range map[string]string{
		"bash": "usr/share/bash-completion/completions/edgecore", "zsh": "usr/share/zsh/vendor-completions/_edgecore",
		"fish": "usr/share/fish/vendor_completions.d/edgecore.fish",
	} {
		script, err := output(ctx, r.source, nil, host, "completion", shell)
		if err != nil {
			return err
		}
		files.add(at, []byte(script))
	}
	return nil
}

// describe adds what dpkg reads: the fields, the scripts and the sums.
func (r *release) describe(files tree, c control) error {
	changes, err := r.fill("changelog", c)
	if err != nil {
		return err
	}
	if err := files.compressed("usr/share/doc/edgecore/changelog", changes); err != nil {
		return err
	}
	c.InstalledSize = files.size()
	fields, err := r.fill("control", c)
	if err != nil {
		return err
	}
	sums := files.sums()
	files.add("DEBIAN/control", fields)
	files.add("DEBIAN/md5sums", sums)
	for _, script := range []string{"preinst", "postinst", "prerm", "postrm"} {
		text, err := os.ReadFile(filepath.Join(r.source, debianDir, script))
		if err != nil {
			return err
		}
		files["DEBIAN/"+script] = entry{text, 0o755}
	}
	return nil
}

// fill fills in the fields of a package file.
func (r *release) fill(name string, c control) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(r.source, debianDir, name))
	if err != nil {
		return nil, err
	}
	t, err := template.New(name).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, c)
	return out.Bytes(), err
}

// pack writes the package, and a link to it whose name has no version in it. Packages of other versions go, so that a
// pattern such as edgecore_*_arm64.deb means the one.
func (r *release) pack(ctx context.Context, t target, files tree, name string) error {
	dir := filepath.Join(r.work, "package-"+t.debian)
	if err := files.write(dir); err != nil {
		return err
	}
	deb := filepath.Join(r.out, name)
	epoch := "SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.made.Unix(), 10)
	// One thread: several may give different bytes.
	if err := command(ctx, "", []string{epoch}, "dpkg-deb", "--root-owner-group", "-Zxz", "--threads-max=1", "--build",
		dir, deb); err != nil {
		return err
	}
	if err := r.removeOthers(t, deb); err != nil {
		return err
	}
	link := filepath.Join(r.out, "edgecore_"+t.debian+".deb")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, link); err != nil {
		return err
	}
	if !r.lintian {
		return nil
	}
	return command(ctx, "", nil, "lintian", "--fail-on", "error", "--allow-root", "--no-cfg", "--tag-display-limit",
		"0", deb)
}

// removeOthers removes an architecture's packages but one.
func (r *release) removeOthers(t target, deb string) error {
	all, err := filepath.Glob(filepath.Join(r.out, "edgecore_*_"+t.debian+".deb"))
	if err != nil {
		return err
	}
	for _, path := range all {
		if path == deb {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
