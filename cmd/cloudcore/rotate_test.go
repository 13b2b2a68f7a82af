package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/edgecore-io/edgecore/cloud/certificates"
)

func TestRotate(t *testing.T) {
	secrets := fake.NewClientset().CoreV1().Secrets(certificates.Namespace)
	run := func(args ...string) (string, error) {
		o := &rotateOptions{access: getTokenOptions{globalOptions: &globalOptions{},
			secrets: func(context.Context) (certificates.Secrets, error) { return secrets, nil }}}
		cmd := o.command()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for _, what := range []string{"ca", "tokens"} {
		if _, err := run(what); err == nil || !strings.Contains(err.Error(), "cloudcore makes it when it starts") {
			t.Errorf("rotate %s before the first start: %v, want it to say who makes the secret", what, err)
		}
	}
	start := func() *certificates.Authority {
		a, err := certificates.New(t.Context(), secrets, certificates.Options{Addresses: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	before := start()
	token, err := before.NewToken("edge1", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args []string
		says string
	}{
		{[]string{"ca"}, "are good until cloudcore rotate ca --finish"},
		{[]string{"tokens"}, "all earlier tokens are invalid"},
		{[]string{"ca", "--finish"}, "certificates of 1 older CAs are refused"},
	} {
		if out, err := run(row.args...); err != nil || !strings.Contains(out, row.says) {
			t.Errorf("rotate %v: %q, %v; want %q", row.args, out, err, row.says)
		}
	}
	after := start()
	if after.CA().Equal(before.CA()) {
		t.Error("the CA is the one of before, want another")
	}
	if _, err := after.VerifyToken(token.Bearer, "edge1"); err == nil {
		t.Error("a token of before is accepted, want it void")
	}
}
