package migrate

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// certOf makes a certificate of the node edge1 that names a holder.
func certOf(t *testing.T, holder string) string {
	t.Helper()
	key, err := certs.NewKey()
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      certs.Subject("edge1"),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	template.Subject.SerialNumber = holder
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return string(certs.EncodeCertPEM(der))
}

// TestUndoNamesHolder: where edgecore's certificate names another holder than KubeEdge's, cloudcore refuses KubeEdge's,
// and undo says what removes the holder.
func TestUndoNamesHolder(t *testing.T) {
	const first, renewed = "g-1700000000-0123456789abcdef", "g-1800000000-0123456789abcdef"
	const hint = "kubectl label node edge1 edgecore.io.node-restriction.kubernetes.io/holder-\n"
	for name, tc := range map[string]struct {
		theirs, ours string // holders
		want         bool
	}{
		"edgecore renewed a certificate without a holder": {theirs: "", ours: renewed, want: true},
		"edgecore joined again":                           {theirs: first, ours: renewed, want: true},
		"the same device":                                 {theirs: first, ours: first},
		"a cloud without holders":                         {theirs: "", ours: ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t)
			d.write("etc/kubeedge/certs/server.crt", certOf(t, tc.theirs), 0o644)
			take, _ := d.takeover()
			must(t, take.Adopt(t.Context()))
			d.write("etc/edgecore/certs/server.crt", certOf(t, tc.ours), 0o644)
			undo, output := d.takeover()
			must(t, undo.Undo(t.Context()))
			if got := strings.HasSuffix(output.String(), hint); got != tc.want {
				t.Errorf("undo names the command %q at its end: %v, want %v; it said:\n%s", hint, got, tc.want, output)
			}
		})
	}
}
