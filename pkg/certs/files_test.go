package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func testFiles(t *testing.T) Files {
	dir := t.TempDir()
	return Files{CA: dir + "/ca/rootCA.crt", Cert: dir + "/certs/server.crt", Key: dir + "/certs/server.key"}
}

func save(t *testing.T, f Files, ca *authority, node string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	cert := ca.node(t, node, key, x509.ExtKeyUsageClientAuth)
	if err := f.Save(ca.cert.Raw, cert.Raw, key); err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func TestSaveAndLoad(t *testing.T) {
	f, ca := testFiles(t), newAuthority(t)
	if _, err := f.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load without files = %v, want %v", err, os.ErrNotExist)
	}
	cert, key := save(t, f, ca, "edge1")
	id, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	if !id.Cert().Equal(cert) || !id.Key.Equal(key) || len(id.CAs) != 1 || !id.CAs[0].Equal(ca.cert) {
		t.Errorf("loaded: same certificate %v, same key %v, %d CAs; want what was saved", id.Cert().Equal(cert),
			id.Key.Equal(key), len(id.CAs))
	}
	if c := id.TLS(); len(c.Certificate) != 1 || !bytes.Equal(c.Certificate[0], cert.Raw) || c.PrivateKey != id.Key {
		t.Errorf("TLS: %d certificates, same key %v; want the one saved, with its key", len(c.Certificate),
			c.PrivateKey == id.Key)
	}
	c := id.ClientTLS(func() time.Time { return time.Unix(0, 0) })
	if own, err := c.GetClientCertificate(nil); err != nil || own.Leaf != id.Cert() || !c.RootCAs.Equal(id.Pool()) ||
		!c.Time().Equal(cert.NotBefore) {
		t.Errorf("ClientTLS: certificate %v, %v, same CAs %v, time %v; want what was saved, at %v", own, err,
			c.RootCAs.Equal(id.Pool()), c.Time(), cert.NotBefore)
	}
	if err := VerifyClient(id.Cert(), id.Pool(), cert.NotBefore); err != nil {
		t.Error(err)
	}
	if got := f.ClockBound(); !got.Equal(cert.NotBefore) {
		t.Errorf("bound %v, want %v", got, cert.NotBefore)
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Dir(filepath.Dir(f.CA)) + "/*/*"); len(left) > 0 {
		t.Errorf("left = %v, want no files", left)
	}
	if got := f.ClockBound(); !got.IsZero() {
		t.Errorf("bound without files = %v, want zero", got)
	}
}

// TestModes: the key is for its owner alone, also where others had opened it before.
func TestModes(t *testing.T) {
	f, ca := testFiles(t), newAuthority(t)
	if err := os.MkdirAll(filepath.Dir(f.CA), 0o755); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Symlink(elsewhere, f.CA+pending); err != nil {
		t.Fatal(err)
	}
	save(t, f, ca, "edge1")
	if err := os.Chmod(f.Key, 0o666); err != nil {
		t.Fatal(err)
	}
	save(t, f, ca, "edge1")
	for name, want := range map[string]os.FileMode{
		f.CA: 0o600, f.Cert: 0o600, f.Key: 0o600,
		filepath.Dir(f.Key): os.ModeDir | 0o700, filepath.Dir(f.CA): os.ModeDir | 0o755,
	} {
		info, err := os.Stat(name)
		if err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, want %v (%v)", name, info.Mode(), want, err)
		}
	}
	if _, err := os.Stat(elsewhere); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of a link's target = %v, want %v: the link is not followed", err, os.ErrNotExist)
	}
}

// TestPowerCut stops Save after each of its renames, with a CA that changes, too: what Load finds is whole,
// old or new.
func TestPowerCut(t *testing.T) {
	old, next := newAuthority(t), newAuthority(t)
	for renamed := range 4 {
		f := testFiles(t)
		oldCert, _ := save(t, f, old, "edge1")
		key := newKey(t)
		newCert := next.node(t, "edge1", key, x509.ExtKeyUsageClientAuth)
		keyPEM, err := EncodeKeyPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		parts := []string{f.Key, f.Cert, f.CA}
		for i, data := range [][]byte{keyPEM, EncodeCertPEM(newCert.Raw), EncodeCertPEM(next.cert.Raw)} {
			if err := writePending(parts[i], data); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range parts[:renamed] {
			if err := os.Rename(p+pending, p); err != nil {
				t.Fatal(err)
			}
		}
		want, ca := newCert, next
		if renamed == 0 {
			want, ca = oldCert, old
		}
		for range 2 {
			id, err := f.Load()
			if err != nil {
				t.Errorf("after %d renames: %v", renamed, err)
				break
			}
			if !id.Cert().Equal(want) || !Fits(id.Cert(), id.Key) || !id.CAs[0].Equal(ca.cert) {
				t.Errorf("after %d renames: same certificate %v, fits its key %v, same CA %v; want all true", renamed,
					id.Cert().Equal(want), Fits(id.Cert(), id.Key), id.CAs[0].Equal(ca.cert))
			}
		}
		if _, key := save(t, f, old, "edge1"); key != nil {
			if id, err := f.Load(); err != nil {
				t.Errorf("after %d renames, saved again: %v, want no error", renamed, err)
			} else if !id.Key.Equal(key) {
				t.Errorf("after %d renames, saved again: another key, want the one saved", renamed)
			}
		}
	}
}

func TestLoadDamaged(t *testing.T) {
	ca := newAuthority(t)
	for name, tc := range map[string]struct {
		damage func(f Files) error
		err    string
	}{
		"key of another": {func(f Files) error { return writeKey(t, f.Key) }, "does not belong to key"},
		"empty cert": {func(f Files) error {
			return os.WriteFile(f.Cert, nil, 0o600)
		}, "holds no PEM block of a certificate"},
		"empty key": {func(f Files) error {
			return os.WriteFile(f.Key, nil, 0o600)
		}, "holds no PEM block of a private key"},
		"empty CA": {func(f Files) error {
			return os.WriteFile(f.CA, nil, 0o600)
		}, "holds no PEM block of a certificate"},
		"no CA":   {func(f Files) error { return os.Remove(f.CA) }, "no such file"},
		"no cert": {func(f Files) error { return os.Remove(f.Cert) }, "no such file"},
		"huge":    {func(f Files) error { return os.Truncate(f.Cert, maxFile+1) }, "more than 1024 KiB"},
		"damaged content": {func(f Files) error { return os.WriteFile(f.Cert, EncodeCertPEM([]byte("x")), 0o600) },
			"certificate "},
	} {
		t.Run(name, func(t *testing.T) {
			f := testFiles(t)
			save(t, f, ca, "edge1")
			if err := tc.damage(f); err != nil {
				t.Fatal(err)
			}
			_, err := f.Load()
			wantError(t, err, tc.err)
		})
	}
}

func writeKey(t *testing.T, name string) error {
	data, err := EncodeKeyPEM(newKey(t))
	if err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o600)
}

func TestReadPair(t *testing.T) {
	f, ca := testFiles(t), newAuthority(t)
	if cert, key, err := ReadPair(f.Cert, f.Key); cert != nil || key != nil || err != nil {
		t.Errorf("neither is there: %v", err)
	}
	if cert, _, err := ReadPair("", ""); cert != nil || err != nil {
		t.Errorf("neither is named: %v", err)
	}
	cert, key := save(t, f, ca, "edge1")
	if c, k, err := ReadPair(f.Cert, f.Key); err != nil {
		t.Errorf("ReadPair = %v, want no error", err)
	} else if !c.Equal(cert) || !k.Equal(key) {
		t.Errorf("ReadPair: same certificate %v, same key %v; want true, true", c.Equal(cert), k.Equal(key))
	}
	_, _, err := ReadPair(f.CA, f.Key)
	wantError(t, err, "does not belong to key")
	_, _, err = ReadPair(f.Cert, f.Key+"x")
	wantError(t, err, "no such file")
	_, _, err = ReadPair("", f.Key)
	wantError(t, err, "no such file")
}

func TestWriteFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a", "b", "file")
	for _, content := range []string{"one", "two"} {
		if err := WriteFile(name, []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil || string(got) != content {
			t.Errorf("ReadFile = %q, %v; want %q", got, err, content)
		}
	}
	if err := WriteFile("/proc/none/file", nil); err == nil {
		t.Error("WriteFile below /proc/none = nil, want an error")
	}
}
