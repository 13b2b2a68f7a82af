package images

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// service is an image service whose pulls a test decides on.
type service struct {
	runtimeapi.ImageServiceClient
	mu      sync.Mutex
	present map[string]bool
	pull    func(ctx context.Context, req *runtimeapi.PullImageRequest) error
	pulls   []string
	now     int
	most    int
}

func (s *service) ImageStatus(
	_ context.Context, in *runtimeapi.ImageStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present[in.Image.Image] {
		return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "sha256:" + in.Image.Image}}, nil
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

func (s *service) PullImage(
	ctx context.Context, in *runtimeapi.PullImageRequest, _ ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	s.mu.Lock()
	s.pulls = append(s.pulls, in.Image.Image+" as "+in.Auth.GetUsername())
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now--
	}()
	if s.pull != nil {
		if err := s.pull(ctx, in); err != nil {
			return nil, err
		}
	}
	return &runtimeapi.PullImageResponse{ImageRef: "pulled:" + in.Image.Image}, nil
}

// eventLog is a Recorder that keeps the events of containers as text.
type eventLog struct {
	events.Interface
	mu   sync.Mutex
	list []string
}

func (e *eventLog) ContainerEventf(_ *v1.Pod, _ *v1.Container, _, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, reason+": "+fmt.Sprintf(format, args...))
}

func testPod(image string, policy v1.PullPolicy) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", UID: "1",
		}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image, ImagePullPolicy: policy}}},
	}
}

func ensure(ctx context.Context, p *Puller, pod *v1.Pod, secrets ...v1.Secret) (ref, reason string, retry time.Time) {
	ref, why, retry := p.EnsureImage(ctx, pod, &pod.Spec.Containers[0], secrets, nil)
	if why != nil {
		reason = why.Reason + ": " + why.Message
	}
	return ref, reason, retry
}

// digest is also an ID, by which a runtime knows an image without a name.
var digest = "sha256:" + strings.Repeat("67b7", 16)

// TestPolicies: the runtime gets the name that stands in the pod, with a tag where it has none. Which registry a short
// name is of is for the runtime to decide.
func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		image  string
		policy v1.PullPolicy
		there  bool
		ref    string
		reason string
		pulls  int
	}{
		{"a:1", v1.PullIfNotPresent, true, "sha256:a:1", "", 0},
		{"a:1", v1.PullIfNotPresent, false, "pulled:a:1", "", 1},
		{"a:1", v1.PullAlways, true, "pulled:a:1", "", 1},
		{"a:1", v1.PullNever, true, "sha256:a:1", "", 0},
		{
			"a:1", v1.PullNever, false, "",
			`ErrImageNeverPull: Container image "a:1" is not present with pull policy of Never`, 0,
		},
		{"a", "", true, "pulled:a:latest", "", 1},
		{"a:1", "", true, "sha256:a:1", "", 0},
		{"localhost/a:1", "", true, "sha256:localhost/a:1", "", 0},
		{"a@" + digest, "", true, "sha256:a@" + digest, "", 0},
		{"a:1@" + digest, "", false, "pulled:a:1@" + digest, "", 1},
		{digest, v1.PullNever, true, "sha256:" + digest, "", 0},
		{digest, v1.PullIfNotPresent, true, "sha256:" + digest, "", 0},
		{"Not An Image", v1.PullAlways, true, "", `InvalidImageName: Failed to apply default image tag "Not An Image"`,
			0},
		{"", v1.PullAlways, true, "", "InvalidImageName", 0},
	} {
		name, err := WithDefaultTag(c.image)
		s := &service{present: map[string]bool{name: c.there && err == nil}}
		ref, reason, _ := ensure(t.Context(), New(s, Options{Recorder: &eventLog{}}), testPod(c.image, c.policy))
		if ref != c.ref || !strings.HasPrefix(reason, c.reason) || (c.reason == "") != (reason == "") ||
			len(s.pulls) != c.pulls {
			t.Errorf("%q %s there=%v: %q, %q, pulls %v; want %q, %q, %d",
				c.image, c.policy, c.there, ref, reason, s.pulls, c.ref, c.reason, c.pulls)
		}
	}
}

// TestFailureEvents: each failure is an event Failed, after the one that says what was tried.
func TestFailureEvents(t *testing.T) {
	rpc := status.Error(codes.NotFound, "none")
	for name, c := range map[string]struct {
		image  string
		policy v1.PullPolicy
		err    error
		want   []string
	}{
		"invalid name": {
			"Not An Image", v1.PullAlways, nil, []string{"InspectFailed", "Failed: Error: InvalidImageName"},
		},
		"never": {"a:1", v1.PullNever, nil, []string{"ErrImageNeverPull", "Failed: Error: ErrImageNeverPull"}},
		"pull, then back-off": {
			"a:1", v1.PullAlways, rpc, []string{
				"Pulling", `Failed: Failed to pull image "a:1": rpc error: code = NotFound desc = none`,
				"Failed: Error: ErrImagePull", `BackOff: Back-off pulling image "a:1"`,
				"Failed: Error: ImagePullBackOff",
			},
		},
	} {
		e := &eventLog{}
		p := New(&service{pull: func(context.Context, *runtimeapi.PullImageRequest) error { return c.err }},
			Options{Recorder: e})
		for range (len(c.want) + 1) / 3 {
			ensure(t.Context(), p, testPod(c.image, c.policy))
		}
		match := slices.EqualFunc(e.list, c.want, func(got, want string) bool { return strings.HasPrefix(got, want) })
		if !match {
			t.Errorf("%s: events %q, want %q", name, e.list, c.want)
		}
	}
}

// TestNormalize: names are compared in their complete form; an ID is complete.
func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"a":                          "docker.io/library/a:latest",
		"b/a:1":                      "docker.io/b/a:1",
		"localhost/a":                "localhost/a:latest",
		"docker.io/library/a":        "docker.io/library/a:latest",
		"r.example:5000/a@" + digest: "r.example:5000/a@" + digest,
		digest:                       digest,
		"sha256:67b7":                "docker.io/library/sha256:67b7",
		"sha256:1":                   "docker.io/library/sha256:1",
	} {
		if got, err := Normalize(in); got != want || err != nil {
			t.Errorf("Normalize(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "A", strings.Repeat("67b7", 16)} {
		if got, err := Normalize(in); err == nil {
			t.Errorf("Normalize(%q) = %q, want an error", in, got)
		}
	}
}

func TestPullError(t *testing.T) {
	unknown, other := status.Error(codes.Unknown, "failed to pull"), status.Error(codes.NotFound, "none")
	for want, err := range map[string]error{
		"failed to pull":                         unknown,
		"rpc error: code = NotFound desc = none": other,
		"plain":                                  errors.New("plain"),
		"[failed to pull, rpc error: code = NotFound desc = none]": errors.Join(unknown, other, unknown),
	} {
		if got := pullError(err); got != want {
			t.Errorf("pullError = %q, want %q", got, want)
		}
	}
	for text, want := range map[string][2]string{
		"RegistryUnavailable: down": {
			RegistryUnavailable, "image pull failed for a because the registry is unavailable: down",
		},
		"SignatureValidationFailed: bad": {
			SignatureInvalid, "image pull failed for a because the signature validation failed: bad",
		},
		"it says RegistryUnavailable too": {ErrImagePull, "it says RegistryUnavailable too"},
	} {
		if reason, message := explain("a", text); reason != want[0] || message != want[1] {
			t.Errorf("explain(%q) = %s, %q; want %s, %q", text, reason, message, want[0], want[1])
		}
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{pull: func(context.Context, *runtimeapi.PullImageRequest) error {
			return errors.New("no route to registry")
		}}
		p := New(s, Options{Recorder: &eventLog{}})
		pod := testPod("a:1", v1.PullIfNotPresent)
		if _, reason, _ := ensure(t.Context(), p, pod); reason != "ErrImagePull: no route to registry" {
			t.Errorf("reason %q, want ErrImagePull: no route to registry", reason)
		}
		_, reason, retry := ensure(t.Context(), p, pod)
		if reason != `ImagePullBackOff: Back-off pulling image "a:1": ErrImagePull: no route to registry` ||
			time.Until(retry) != 10*time.Second {
			t.Errorf("%s, again in %v; want ImagePullBackOff, in 10s", reason, time.Until(retry))
		}
		var delays []time.Duration
		for range 7 {
			_, _, retry = ensure(t.Context(), p, pod)
			delays = append(delays, time.Until(retry))
			time.Sleep(time.Until(retry))
			ensure(t.Context(), p, pod)
		}
		if fmt.Sprint(delays) != "[10s 20s 40s 1m20s 2m40s 5m0s 5m0s]" {
			t.Errorf("delays %v, want [10s 20s 40s 1m20s 2m40s 5m0s 5m0s]", delays)
		}
		_, _, retry = ensure(t.Context(), p, pod)
		time.Sleep(time.Until(retry))
		s.pull = nil
		if ref, reason, _ := ensure(t.Context(), p, pod); ref == "" {
			t.Errorf("pull after the failures: %q, want it to succeed", reason)
		}
	})
}

// TestSharedPull: those who want the same share one pull, which ends when the last of them gives up.
func TestSharedPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		s := &service{pull: func(ctx context.Context, _ *runtimeapi.PullImageRequest) error {
			<-ctx.Done()
			ended = true
			return ctx.Err()
		}}
		p := New(s, Options{Recorder: &eventLog{}})
		one, cancelOne := context.WithCancel(t.Context())
		two, cancelTwo := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, ctx := range []context.Context{one, two} {
			wg.Go(func() { ensure(ctx, p, testPod("a:1", v1.PullIfNotPresent)) })
		}
		synctest.Wait()
		cancelOne()
		synctest.Wait()
		if len(s.pulls) != 1 || ended {
			t.Errorf("pulls %v, ended %v: want one that goes on", s.pulls, ended)
		}
		cancelTwo()
		wg.Wait()
		if !ended {
			t.Error("the pull goes on once nobody waits, want it cancelled")
		}
	})
}

func TestSerialAndParallel(t *testing.T) {
	for _, c := range []struct {
		opts Options
		most int
	}{{Options{Serialize: true}, 1}, {Options{MaxParallel: 3}, 3}, {Options{}, 8}} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{pull: func(context.Context, *runtimeapi.PullImageRequest) error {
				time.Sleep(time.Second)
				return nil
			}}
			c.opts.Recorder = &eventLog{}
			p := New(s, c.opts)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() { ensure(t.Context(), p, testPod(fmt.Sprintf("a:%d", i), v1.PullIfNotPresent)) })
			}
			wg.Wait()
			if s.most != c.most || len(s.pulls) != 8 {
				t.Errorf("%+v: %d pulls at once of %d, want %d", c.opts, s.most, len(s.pulls), c.most)
			}
		})
	}
}

func secret(registry, user string) v1.Secret {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":password"))
	return v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{
			v1.DockerConfigJsonKey: []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registry, auth)),
		}}
}

func TestCredentials(t *testing.T) {
	s := &service{pull: func(_ context.Context, req *runtimeapi.PullImageRequest) error {
		if req.Auth.GetUsername() != "right" {
			return errors.New("denied")
		}
		return nil
	}}
	p := New(s, Options{Recorder: &eventLog{}})
	ref, reason, _ := ensure(t.Context(), p, testPod("reg.example.com/team/a:1", v1.PullAlways),
		secret("reg.example.com", "right"), secret("other.example.com", "other"),
		secret("https://reg.example.com/team", "wrong"))
	if ref == "" || fmt.Sprint(s.pulls) != "[reg.example.com/team/a:1 as wrong reg.example.com/team/a:1 as right]" {
		t.Errorf("%q, %q, pulls %v; want one as wrong and one as right", ref, reason, s.pulls)
	}
	bad := secret("x", "y")
	bad.Data[v1.DockerConfigJsonKey] = []byte("{secret garbage")
	if _, err := credentials([]v1.Secret{bad}, nil, "a"); err == nil || strings.Contains(err.Error(), "garbage") {
		t.Errorf("err = %v: want one without the content", err)
	}
	s.pulls = nil
	if ref, reason, _ := ensure(t.Context(), p, testPod("reg.example.com/team/b:1", v1.PullAlways),
		secret("reg.example.com", "right"), bad); ref != "" ||
		!strings.HasPrefix(reason, ErrImagePull+": secret n/s: ") || len(s.pulls) != 0 {
		t.Errorf("with a bad secret: %q, %q, pulls %v; want %s and no pull", ref, reason, s.pulls, ErrImagePull)
	}
	opaque := secret("reg.example.com", "wrong")
	opaque.Type = v1.SecretTypeOpaque
	if list, err := credentials([]v1.Secret{opaque}, nil, "reg.example.com/a"); len(list) != 0 || err != nil {
		t.Errorf("credentials of a secret of another type = %v, %v; want none", list, err)
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		registry, image string
		want            bool
	}{
		{"reg.example.com", "reg.example.com/a", true},
		{"*.example.com", "reg.example.com/a", true},
		{"*.example.com", "a.reg.example.com/a", false},
		{"reg.example.com:5000", "reg.example.com:5000/a", true},
		{"reg.example.com", "reg.example.com:5000/a", false},
		{"reg.example.com/team", "reg.example.com/team/a", true},
		{"reg.example.com/team", "reg.example.com/teams/a", true},
		{"reg.example.com/team/", "reg.example.com/teams/a", false},
		{"https://index.docker.io/v1/", "busybox", true},
		{"https://index.docker.io/v1/", "reg.example.com/a", false},
		{"http://reg.example.com/v2/team", "reg.example.com/team/a", true},
		{"docker.io", "library/busybox", true},
		{"reg.example.com", "busybox", false},
	} {
		if got := len(matching([]credential{{registry: c.registry}}, c.image)) == 1; got != c.want {
			t.Errorf("matching(%s, %s) = %v, want %v", c.registry, c.image, got, c.want)
		}
	}
}

// TestPullIsRepaired: what was in the way of a pull has gone, and it is tried again; or the image has come otherwise.
func TestPullIsRepaired(t *testing.T) {
	const name = "a:1"
	for what, tc := range map[string]struct {
		policy     v1.PullPolicy
		repair     func(s *service) bool
		ref        string
		pulls      int
		stillFails bool
	}{
		"nothing was in the way": {v1.PullIfNotPresent, func(*service) bool { return false }, "", 1, false},
		"a bad blob has gone": {v1.PullIfNotPresent, func(*service) bool {
			return true
		}, "pulled:" + name, 2, false},
		"a bad blob was not all": {v1.PullIfNotPresent, func(*service) bool { return true }, "", 2, true},
		"an archive had it": {v1.PullIfNotPresent, func(s *service) bool {
			s.present[name] = true
			return true
		}, "sha256:" + name, 1, false},
		"an archive is not what Always asks": {v1.PullAlways, func(s *service) bool {
			s.present[name] = true
			return true
		}, "pulled:" + name, 2, false},
	} {
		failed := false
		s := &service{present: map[string]bool{}}
		s.pull = func(context.Context, *runtimeapi.PullImageRequest) error {
			if failed && !tc.stillFails {
				return nil
			}
			failed = true
			return errors.New("blob not found")
		}
		p := New(s, Options{Recorder: &eventLog{}, Repair: func(_ context.Context, image string, err error) bool {
			if image != name || !strings.Contains(err.Error(), "blob not found") {
				t.Errorf("%s: repair of %s for %v, want %s for blob not found", what, image, err, name)
			}
			return tc.repair(s)
		}})
		ref, reason, _ := ensure(t.Context(), p, testPod("a:1", tc.policy))
		if ref != tc.ref || len(s.pulls) != tc.pulls || (ref == "") != (reason != "") {
			t.Errorf("%s: %q, %q, pulls %v; want %q, %d pulls", what, ref, reason, s.pulls, tc.ref, tc.pulls)
		}
	}
}

// TestWithDigest: the repository of an image is that of its name, and only a digest follows it.
func TestWithDigest(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for image, want := range map[string]string{
		"busybox":                     "docker.io/library/busybox",
		"reg.example:5000/a/b:1":      "reg.example:5000/a/b",
		"reg.example/a/b:1@" + digest: "reg.example/a/b",
		"reg.example/a/b@" + digest:   "reg.example/a/b",
		digest:                        "",
		"reg.example/A":               "",
	} {
		got, err := WithDigest(image, digest)
		if want != "" {
			want += "@" + digest
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("WithDigest(%q) = %q, %v; want %q", image, got, err, want)
		}
	}
	for _, bad := range []string{"", "latest", "sha256:../../x", "sha512:" + strings.Repeat("a", 128), digest + "@x"} {
		if got, err := WithDigest("reg.example/a:1", bad); err == nil {
			t.Errorf("WithDigest(%q) = %q, want an error", bad, got)
		}
	}
}
