package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

func TestRevoke(t *testing.T) {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge1"}})
	secrets := client.CoreV1().Secrets(certificates.Namespace)
	if _, err := certificates.New(t.Context(), secrets, certificates.Options{
		Addresses: []string{"127.0.0.1"},
	}); err != nil {
		t.Fatal(err)
	}
	for node, warning := range map[string]string{"edge1": "", "edge2": "is the name right?"} {
		o := &revokeOptions{client: func() (kubernetes.Interface, error) { return client, nil }}
		var out, errs bytes.Buffer
		now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
		if err := o.run(t.Context(), node, &out, &errs, now); err != nil {
			t.Fatal(err)
		}
		want := "Revoked node " + node + ": certificates and tokens of before 2026-11-21T12:00:00Z are refused.\n"
		if out.String() != want || !strings.Contains(errs.String(), warning) || (warning == "") != (errs.Len() == 0) {
			t.Errorf("stdout %q, stderr %q; want %q and %q", out.String(), errs.String(), want, warning)
		}
	}
	secret, err := secrets.Get(t.Context(), "edgecore-revocations", metav1.GetOptions{})
	if err != nil || string(secret.Data["edge1"]) != "2026-11-21T12:00:00Z" {
		t.Fatalf("the secret holds %q, %v; want the moment of edge1", secret.Data, err)
	}

	before := time.Now().Truncate(time.Second)
	out, _, err := getToken(t, secrets, "--node", "edge1", "--replace")
	if err != nil {
		t.Fatal(err)
	}
	token, err := certs.ParseToken(out)
	if err != nil || token.Claims.Node != "edge1" || token.Claims.Since.Before(before) {
		t.Errorf("token %+v, %v; want one for edge1 of after %v", token, err, before)
	}
	if _, _, err := getToken(t, secrets, "--replace"); err == nil || !strings.Contains(err.Error(), "--node NAME") {
		t.Errorf("--replace alone: %v, want an error that names --node", err)
	}
}
