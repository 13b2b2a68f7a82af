package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// creds are those of one pull secret.
func creds(t *testing.T, uid, password string) []credential {
	t.Helper()
	secret := v1.Secret{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default", Name: "pull-" + uid},
		Type:       v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{
			v1.DockerConfigJsonKey: []byte(`{"auths":{"example.com":{"username":"u","password":"` + password + `"}}}`),
		},
	}
	list, err := credentials([]v1.Secret{secret}, nil, "example.com/app:1")
	if err != nil || len(list) != 1 {
		t.Fatalf("credentials = %v, %v; want one", list, err)
	}
	return list
}

func TestWhoMayUseAnImage(t *testing.T) {
	one, same, rotated, other := creds(t, "1", "a"), creds(t, "2", "a"), creds(t, "1", "b"), creds(t, "3", "c")
	const id, app, twin = "sha256:1", "example.com/app:1", "example.com/twin:1"
	for name, c := range map[string]struct {
		policy Policy
		allow  []string
		pulls  func(*access) error
		image  string
		creds  []credential
		want   bool
	}{
		"with the credentials of the pull": {pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}, creds: one, want: true},
		"by another tag": {
			pulls: func(a *access) error { return a.pulled(id, app, &one[0], nil) },
			image: "example.com/app:2",
			creds: one,
			want:  true,
		},
		"the same in another secret": {pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}, creds: same, want: true},
		"the secret has other content since": {pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}, creds: rotated, want: true},
		"other credentials": {pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}, creds: other},
		"no credentials": {pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}},
		"one of several": {pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}, creds: append(other[:1:1], one...), want: true},
		"two have pulled it": {pulls: func(a *access) error {
			_ = a.pulled(id, app, &one[0], nil)
			return a.pulled(id, app, &other[0], nil)
		}, creds: one, want: true},
		"it was pulled without any": {pulls: func(a *access) error { return a.pulled(id, app, nil, nil) },
			want: true},
		"first with, then without any": {pulls: func(a *access) error {
			_ = a.pulled(id, app, &one[0], nil)
			return a.pulled(id, app, nil, nil)
		}, want: true},
		"first without any, then with": {pulls: func(a *access) error {
			_ = a.pulled(id, app, nil, nil)
			return a.pulled(id, app, &one[0], nil)
		}, want: true},
		"pulled by another name": {pulls: func(a *access) error { return a.pulled(id, twin, nil, nil) },
			creds: one},
		"by its ID, and it was pulled without any": {pulls: func(a *access) error {
			return a.pulled(id, app, nil, nil)
		}, image: id, want: true},
		"by its ID, and it was pulled with credentials": {pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}, image: id, creds: one},
		"by its ID, and it is preloaded": {image: id, want: true},
		"by a short name that the runtime found elsewhere": {pulls: func(a *access) error {
			return a.pulled(id, "app:1", &one[0], []string{app})
		}},
		"preloaded":                       {want: true},
		"preloaded, and all are verified": {policy: kubeletconfig.AlwaysVerify, creds: one},
		"pulled, and all are verified": {
			policy: kubeletconfig.AlwaysVerify,
			pulls:  func(a *access) error { return a.pulled(id, app, &one[0], nil) },
			creds:  one,
			want:   true,
		},
		"pulled, and none is verified": {policy: kubeletconfig.NeverVerify, pulls: func(a *access) error {
			return a.pulled(id, app, &one[0], nil)
		}, want: true},
		"preloaded and listed": {
			policy: kubeletconfig.NeverVerifyAllowlistedImages, allow: []string{"example.com/app"}, want: true,
		},
		"preloaded and listed with its folder": {
			policy: kubeletconfig.NeverVerifyAllowlistedImages, allow: []string{"example.com/*"}, want: true,
		},
		"preloaded and not listed": {
			policy: kubeletconfig.NeverVerifyAllowlistedImages, allow: []string{"example.com/other", "example.org/*",
				"example.com/ap/*"},
		},
		"pulled with credentials, though listed": {
			policy: kubeletconfig.NeverVerifyAllowlistedImages, allow: []string{"example.com/app"},
			pulls: func(a *access) error {
				return a.pulled(id, app, &one[0], nil)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := &access{dir: t.TempDir(), policy: c.policy, allow: c.allow}
			if c.policy == "" {
				a.policy = kubeletconfig.NeverVerifyPreloadedImages
			}
			if c.pulls != nil {
				if err := c.pulls(a); err != nil {
					t.Fatal(err)
				}
			}
			image := app
			if c.image != "" {
				image = c.image
			}
			again := &access{dir: a.dir, policy: a.policy, allow: a.allow} // the agent starts again
			if got, err := again.allowed(id, image, c.creds); got != c.want || err != nil {
				t.Errorf("allowed = %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestRecords(t *testing.T) {
	a := &access{dir: filepath.Join(t.TempDir(), "images"), policy: kubeletconfig.NeverVerifyPreloadedImages}
	if err := a.prune(nil); err != nil {
		t.Error(err)
	}
	one := creds(t, "1", "secret-word")
	for _, id := range []string{"sha256:1", "sha256:2"} {
		if err := a.pulled(id, "example.com/app:1", &one[0], nil); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(a.path("sha256:1"))
	if info, _ := os.Stat(filepath.Dir(a.path("sha256:1"))); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder of records %v, %v; want mode 0700", info, err)
	}
	if text := string(data); len(text) == 0 || strings.Contains(text, "secret-word") {
		t.Errorf("record %q, want one without the password", text)
	}
	before, err := os.Stat(a.path("sha256:1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.pulled("sha256:1", "example.com/app:1", &one[0], nil); err != nil {
		t.Error(err)
	}
	if after, err := os.Stat(a.path("sha256:1")); err != nil || !os.SameFile(before, after) ||
		!after.ModTime().Equal(before.ModTime()) {
		t.Errorf("record after a second pull = %+v, %v, want %+v unchanged", after, err, before)
	}
	if err := a.prune([]string{"sha256:2", "sha256:3"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(a.path("sha256:1")); !os.IsNotExist(err) {
		t.Errorf("Stat of the record of an image that is gone: %v, want %v", err, os.ErrNotExist)
	}
	// A record that a power cut left empty is as none, said once, and replaced at the next pull.
	if err := os.WriteFile(a.path("sha256:2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.allowed("sha256:2", "example.com/app:1", nil); !ok || err == nil {
		t.Errorf("allowed by an empty record = %v, %v; want true and an error", ok, err)
	}
	if err := a.pulled("sha256:2", "example.com/app:1", &one[0], nil); err != nil {
		t.Error(err)
	}
	if ok, err := a.allowed("sha256:2", "example.com/app:1", nil); ok || err != nil {
		t.Errorf("allowed by a new record = %v, %v; want false", ok, err)
	}
}
