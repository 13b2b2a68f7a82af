package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged"
	"github.com/edgecore-io/edgecore/edgehub"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// aReloader has a file with a text, and remembers what it hands on.
func aReloader(t *testing.T, text string) (*reloader, *health.Registry, chan *v1alpha2.EdgeCore) {
	t.Helper()
	file := writeConfig(t, text)
	cfg, _, err := v1alpha2.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	conditions, taken := &health.Registry{}, make(chan *v1alpha2.EdgeCore, 100)
	return &reloader{file: file, started: cfg, taken: cfg, conditions: conditions, take: func(next *v1alpha2.EdgeCore) error {
		taken <- next
		return nil
	}}, conditions, taken
}

func rewrite(t *testing.T, file, text string) {
	t.Helper()
	from := writeConfig(t, text)
	if err := os.Rename(from, file); err != nil {
		t.Fatal(err)
	}
}

const inKubelet = "modules: {edged: {tailoredKubeletConfig: {%s}}}\n"

// TestReload: each file in turn, after one with maxPods 20 and 5 events a second.
func TestReload(t *testing.T) {
	r, conditions, taken := aReloader(t, fmt.Sprintf(inKubelet, "maxPods: 20, eventRecordQPS: 5"))
	for _, step := range []struct {
		name, text string
		takes      bool
		// want are the conditions after it, each with a part of its detail.
		want map[health.Code]string
	}{
		{"nothing", "maxPods: 20, eventRecordQPS: 5", false, nil},
		{"what is taken over", "maxPods: 20, eventRecordQPS: 6", true, nil},
		{"of no use", "maxPods: 20, eventRecordQPS: -1", false, map[health.Code]string{health.ConfigurationBad: "eventRecordQPS"}},
		{"no YAML", "maxPods: [", false, map[health.Code]string{health.ConfigurationBad: ""}},
		{"mended, and one that waits", "maxPods: 30, eventRecordQPS: 6", true, map[health.Code]string{health.RestartNeeded: "maxPods: 20 -> 30"}},
		{"of no use while one waits", "maxPods: -1", false, map[health.Code]string{health.ConfigurationBad: "maxPods", health.RestartNeeded: "maxPods: 20 -> 30"}},
		{"two wait", "maxPods: 31, podPidsLimit: 99", true, map[health.Code]string{health.RestartNeeded: "maxPods: 20 -> 31; modules.edged.tailoredKubeletConfig.podPidsLimit: -1 -> 99"}},
		{"taken back", "maxPods: 20, eventRecordQPS: 5", true, nil},
	} {
		rewrite(t, r.file, fmt.Sprintf(inKubelet, step.text))
		r.reload()
		if got := len(taken) > 0; got != step.takes {
			t.Errorf("%s: handed on: %v, want %v", step.name, got, step.takes)
		}
		for len(taken) > 0 {
			<-taken
		}
		list := conditions.Snapshot()
		if len(list) != len(step.want) {
			t.Errorf("%s: %+v, want %v", step.name, list, step.want)
		}
		for _, c := range list {
			if want, ok := step.want[c.Code]; !ok || !strings.Contains(c.Detail, want) {
				t.Errorf("%s: %s says %q, want %q", step.name, c.Code, c.Detail, want)
			}
		}
	}
	r.take = func(*v1alpha2.EdgeCore) error { return errors.New("no room") }
	rewrite(t, r.file, fmt.Sprintf(inKubelet, "eventRecordQPS: 9"))
	r.reload()
	if c, _ := conditions.Healthy(); len(conditions.Snapshot()) != 1 || !strings.Contains(conditions.Snapshot()[0].Detail, "no room") {
		t.Errorf("%+v, %+v: want what a part had against it", conditions.Snapshot(), c)
	}
}

// TestReloadNoticesTheFile: a file that is replaced, written into, or changed behind a link is read without being asked.
func TestReloadNoticesTheFile(t *testing.T) {
	r, _, taken := aReloader(t, fmt.Sprintf(inKubelet, "eventRecordQPS: 5"))
	real := r.file
	r.file = filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(real, r.file); err != nil {
		t.Fatal(err)
	}
	told, quiet := hangups()
	defer quiet()
	defer keepConfigured(t.Context(), told, r)()
	expect := func(what string, qps int32) {
		t.Helper()
		for {
			cfg := wait.Receive(t, what+" to be noticed", taken)
			if *cfg.Modules.Edged.TailoredKubeletConfig.EventRecordQPS == qps {
				return
			}
		}
	}
	rewrite(t, real, fmt.Sprintf(inKubelet, "eventRecordQPS: 6"))
	expect("replaced behind a link", 6)
	text, err := os.ReadFile(real)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(real, []byte(strings.Replace(string(text), "QPS: 6", "QPS: 17", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("written into", 17)
	other := writeConfig(t, fmt.Sprintf(inKubelet, "eventRecordQPS: 8"))
	if err := os.Symlink(other, r.file+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(r.file+".new", r.file); err != nil {
		t.Fatal(err)
	}
	expect("another link", 8)
}

// TestReloadOnSIGHUP: the file is read though nothing about it looks new, and the program goes on.
func TestReloadOnSIGHUP(t *testing.T) {
	r, conditions, _ := aReloader(t, fmt.Sprintf(inKubelet, "maxPods: 21"))
	told, quiet := hangups()
	defer quiet()
	defer keepConfigured(t.Context(), told, r)()
	waits := func(what, detail string) {
		t.Helper()
		wait.Until(t, what+" to be read", func() error {
			list := conditions.Snapshot()
			if len(list) == 1 && list[0].Code == health.RestartNeeded && strings.Contains(list[0].Detail, detail) {
				return nil
			}
			return fmt.Errorf("conditions %+v, want %s with %q", list, health.RestartNeeded, detail)
		})
	}
	rewrite(t, r.file, fmt.Sprintf(inKubelet, "maxPods: 22"))
	waits("changed", "21 -> 22")
	info, err := os.Stat(r.file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.file, []byte(strings.Replace(string(text), "22", "23", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(r.file, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan os.Signal, 1) // after the test nobody would take it
	signal.Notify(arrived, syscall.SIGHUP)
	defer signal.Stop(arrived)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-arrived
	waits("SIGHUP", "21 -> 23")
}

// TestReloadableKeysChangeWhatIsTaken: a key that is said to be taken over reaches the part that takes it.
func TestReloadableKeysChangeWhatIsTaken(t *testing.T) {
	const hub, own, kubelet = "modules.edgeHub.", "modules.edged.", "modules.edged.tailoredKubeletConfig."
	values := map[string]string{
		hub + "heartbeat": "{edgeHub: {heartbeat: 17}}", hub + "messageQPS": "{edgeHub: {messageQPS: 17}}", hub + "messageBurst": "{edgeHub: {messageBurst: 17}}",
		hub + "projectID": "{edgeHub: {projectID: other}}", hub + "websocket": "{edgeHub: {websocket: {server: \"192.0.2.9:1\"}}}",
		hub + "quic":         "{edgeHub: {quic: {server: \"192.0.2.9:1\"}}}",
		own + "reportEvent":  "{edged: {reportEvent: false}}",
		own + "minimumGCAge": "{edged: {minimumGCAge: 17s}}", own + "maxPerPodContainerCount": "{edged: {maxPerPodContainerCount: 17}}", own + "maxContainerCount": "{edged: {maxContainerCount: 17}}",
	}
	for key, value := range map[string]string{
		"clusterDomain": "other.local", "clusterDNS": "[192.0.2.1]", "resolvConf": "/other", "crashLoopBackOff": "{maxContainerRestartPeriod: 17s}",
		"eventRecordQPS": "17", "eventBurst": "17", "registryPullQPS": "17", "registryBurst": "17", "serializeImagePulls": "false", "maxParallelImagePulls": "1",
		"containerLogMaxSize": "17Mi", "containerLogMaxFiles": "17",
		"imageMinimumGCAge": "17s", "imageMaximumGCAge": "17h", "imageGCHighThresholdPercent": "97", "imageGCLowThresholdPercent": "17",
		"evictionSoft": "{pid.available: 17%}, evictionSoftGracePeriod: {pid.available: 1s}", "evictionSoftGracePeriod": "{pid.available: 17s}, evictionSoft: {pid.available: 17%}",
		"evictionMinimumReclaim": "{memory.available: 17Mi}", "evictionPressureTransitionPeriod": "17s", "evictionMaxPodGracePeriod": "17",
	} {
		values[kubelet+key] = "{edged: {tailoredKubeletConfig: {" + key + ": " + value + "}}}"
	}
	base := v1alpha2.Default()
	before, err := edgedOptions(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range v1alpha2.ReloadableKeys() {
		text, ok := values[key]
		if !ok {
			t.Errorf("no value here for %s, want one: it is among the reloadable keys", key)
			continue
		}
		cfg, _, err := v1alpha2.Load(writeConfig(t, "modules: "+text+"\n"))
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		changes, err := v1alpha2.Changes(base, cfg)
		if err != nil || len(changes) == 0 || slices.ContainsFunc(changes, func(c v1alpha2.Change) bool { return !c.Live }) {
			t.Errorf("%s: %v, %v: want changes that are taken over", key, changes, err)
		}
		opts, err := edgedOptions(cfg)
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
		link := linkSettings(base.Modules.EdgeHub, cfg.Modules.EdgeHub)
		if reflect.DeepEqual(before.Settings(), opts.Settings()) && link == base.Modules.EdgeHub {
			t.Errorf("%s: %s changes nothing, want a change: the key is among the reloadable keys", key, text)
		}
	}
}

func TestLinkSettings(t *testing.T) {
	started, next := v1alpha2.Default().Modules.EdgeHub, v1alpha2.Default().Modules.EdgeHub
	next.Heartbeat, next.Token, next.TLSCertFile, next.HTTPServer = 7, "other", "/other", "https://other"
	want := started
	want.Heartbeat = 7
	if diff := cmp.Diff(want, linkSettings(started, next)); diff != "" {
		t.Errorf("what a link cannot take over stays (-want +got):\n%s", diff)
	}
}

// TestReloadableKeysAreDocumented: docs/node.md says what comes of each.
func TestReloadableKeysAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/node.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "### Changes of the configuration")
	section, _, _ = strings.Cut(section, "\n### ")
	for _, key := range v1alpha2.ReloadableKeys() {
		if name := key[strings.LastIndexByte(key, '.')+1:]; !strings.Contains(section, "`"+name+"`") {
			t.Errorf("%s is not named among the changes in docs/node.md, want it there: it is reloadable", key)
		}
	}
}

// TestTakeOver: the parts are told, or the reason why one cannot take it over.
func TestTakeOver(t *testing.T) {
	started := v1alpha2.Default()
	started.Modules.Edged.HostnameOverride = "edge1"
	opts, err := edgedOptions(started)
	if err != nil {
		t.Fatal(err)
	}
	module, err := edgehub.New(edgehub.Options{Node: "edge1", Config: started.Modules.EdgeHub})
	if err != nil {
		t.Fatal(err)
	}
	take := takeOver(edged.New(opts), &link{Module: module}, started)
	good, noServer, noSysctl := *started, *started, *started
	good.Modules.EdgeHub.WebSocket.Server = "192.0.2.7:10000"
	noServer.Modules.EdgeHub.WebSocket.Server = ""
	noSysctl.Modules.Edged.TailoredKubeletConfig.AllowedUnsafeSysctls = []string{"not a sysctl"}
	for _, c := range []struct {
		name string
		cfg  *v1alpha2.EdgeCore
		want string
	}{{"good", &good, ""}, {"no server", &noServer, "link to the cloud: modules.edgeHub.websocket.server"}, {"no sysctl", &noSysctl, "allowedUnsafeSysctls"}} {
		if err := take(c.cfg); fmt.Sprint(err) != "<nil>" && c.want == "" || c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := takeOver(nil, nil, started)(&noSysctl); err != nil {
		t.Errorf("no part has something against it: %v", err)
	}
}
