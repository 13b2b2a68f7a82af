package repair

import (
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestJudge(t *testing.T) {
	start := func(message string) Failure { return Failure{Stage: Start, Message: message} }
	exit := func(code int32, lived time.Duration, message string) Failure {
		return Failure{Stage: Exit, ExitCode: code, Lived: lived, Message: message}
	}
	for name, tc := range map[string]struct {
		failure        Failure
		usual, unclean Suspicion
	}{
		"an empty program, runc": {
			start(`failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "/app": exec format error: unknown`), Strong, Strong,
		},
		"an empty program, by its log": {exit(255, time.Millisecond, "exec /bin/app: exec format error"), Strong,
			Strong},
		"a missing program": {
			start(`unable to start container process: exec: "/app": stat /app: no such file or directory: unknown`),
			Weak, Weak,
		},
		"a command in no path": {start(`exec: "nope": executable file not found in $PATH: unknown`), Weak,
			Weak},
		"a lost mode":       {start(`exec: "/app": permission denied: unknown`), Weak, Weak},
		"a disk that fails": {start(`exec: "/app": input/output error`), Strong, Strong},
		"a layer that is gone": {
			Failure{
				Stage:   Create,
				Message: `failed to create containerd container: failed to stat parent: stat /var/lib/containerd/x/112/fs: no such file or directory`,
			}, Strong, Strong,
		},
		"a bucket that is gone": {
			Failure{
				Stage:   Create,
				Message: `failed to create snapshot: missing parent "k8s.io/9/sha256:e171" bucket: not found`,
			}, Strong, Strong,
		},
		"a blob that is gone": {
			Failure{
				Stage:   Create,
				Message: `error unpacking image: failed to extract layer sha256:7d: failed to get reader from content store: blob sha256:9e expected at /x: blob not found: not found`,
			}, Strong, Strong,
		},
		"a blob that is cut off": {
			Failure{Stage: Create, Message: `failed to extract layer sha256:7d: unexpected EOF: unknown`}, Strong,
			Strong,
		},
		"an empty passwd": {
			Failure{Stage: Create, Message: `failed to generate container spec: can't find user "app": no users found`},
			Weak, Weak,
		},
		"a name that is taken": {Failure{Stage: Create, Message: `name "x" is reserved for "y"`}, None,
			None},
		"no memory": {start("cannot allocate memory"), None, None},
		"a library cut off": {
			exit(127, time.Millisecond, "error while loading shared libraries: /lib/libc.so.6: file too short"), Strong,
			Strong,
		},
		"a library with other bytes":      {exit(139, 10*time.Millisecond, ""), Weak, Weak},
		"a mapped file cut off":           {exit(135, time.Second, ""), Weak, Weak},
		"a command not found by a shell":  {exit(127, time.Millisecond, "sh: foo: not found"), Weak, Weak},
		"a program of ours that fails":    {exit(1, time.Second, "no configuration"), None, Weak},
		"a script that is empty":          {exit(0, time.Millisecond, ""), None, Weak},
		"a crash after an hour":           {exit(139, time.Hour, ""), None, None},
		"words of a program that runs on": {exit(1, time.Minute, "exec format error"), None, None},
		"a clock that went back":          {exit(139, -time.Hour, ""), None, None},
	} {
		if got := Assess(tc.failure, false); got != tc.usual {
			t.Errorf("%s: %d, want %d", name, got, tc.usual)
		}
		if got := Assess(tc.failure, true); got != tc.unclean {
			t.Errorf("%s, after a power cut: %d, want %d", name, got, tc.unclean)
		}
	}
}

func TestPlan(t *testing.T) {
	lacks := report{layers: []damagedLayer{{blob: "sha256:l"}}}
	blob := report{blobs: []string{"sha256:b"}, layers: lacks.layers}
	dark := report{unknown: "it is compressed with zstd"}
	gone := report{unknown: "x", absent: []string{"sha256:b"}, layers: lacks.layers}
	for name, tc := range map[string]struct {
		rep       report
		suspicion Suspicion
		replaced  bool
		damaged   bool
		want      step
	}{
		"a whole image is left alone":           {report{}, Strong, false, false, leave},
		"a damaged layer is mended":             {lacks, Weak, false, false, mend},
		"also a second time":                    {lacks, Weak, true, false, mend},
		"a damaged blob comes first":            {blob, Weak, false, false, fetch},
		"in the dark a weak sign does nothing":  {dark, Weak, false, false, leave},
		"in the dark a strong sign is believed": {dark, Strong, false, false, replace},
		"and no second time in a boot":          {dark, Strong, true, false, leave},
		"a damage that is known is remembered":  {gone, Weak, true, true, fetch},
		"also of a manifest": {report{unknown: "x", documents: true}, Weak, true, true,
			fetch},
		"what is seen counts more than what isn't": {report{unknown: "x", layers: lacks.layers}, Weak, false, false,
			mend},
	} {
		if got := plan(tc.rep, tc.suspicion, tc.replaced, tc.damaged); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
