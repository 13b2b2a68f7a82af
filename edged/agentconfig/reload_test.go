package agentconfig

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged"
	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/edgehub"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// TestReloadableKeysChangeWhatIsTaken: a key that is said to be taken over reaches the part that takes it.
func TestReloadableKeysChangeWhatIsTaken(t *testing.T) {
	base := v1alpha2.Default()
	before, err := EdgedOptions(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range v1alpha2.ReloadableKeys() {
		cfg, changes := changing(t, key)
		if cfg == nil {
			continue
		}
		if slices.ContainsFunc(changes, func(c v1alpha2.Change) bool { return !c.Live }) {
			t.Errorf("%s: %v: want changes that are taken over", key, changes)
		}
		opts, err := EdgedOptions(cfg)
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
		link := linkSettings(base.Modules.EdgeHub, cfg.Modules.EdgeHub)
		if reflect.DeepEqual(before.Settings(), opts.Settings()) && link == base.Modules.EdgeHub {
			t.Errorf("%s: %v changes nothing, want a change: the key is among the reloadable keys", key, changes)
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

// TestReloadableKeysAreDocumented: docs/configuration.md says what comes of each.
func TestReloadableKeysAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Changes of the configuration")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, key := range v1alpha2.ReloadableKeys() {
		name := strings.TrimPrefix(key, kubeletKeys)
		if name == key {
			name = strings.Join(strings.Split(key, ".")[2:], ".") // without the module
		}
		name, _, _ = strings.Cut(name, ".") // a section of keys, such as websocket, has one row
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("%s is not named among the changes in docs/configuration.md, want it there: it is reloadable", key)
		}
	}
}

// TestReloader: the parts are told, or the reason why one cannot take it over.
func TestReloader(t *testing.T) {
	started := v1alpha2.Default()
	started.Modules.Edged.HostnameOverride = "edge1"
	opts, err := EdgedOptions(started)
	if err != nil {
		t.Fatal(err)
	}
	module, err := edgehub.New(edgehub.Options{Node: "edge1", Config: started.Modules.EdgeHub})
	if err != nil {
		t.Fatal(err)
	}
	reload := NewReloader(started, edged.New(opts), module)
	good, noServer, noSysctl := *started, *started, *started
	good.Modules.EdgeHub.WebSocket.Server = "192.0.2.7:10000"
	noServer.Modules.EdgeHub.WebSocket.Server = ""
	noSysctl.Modules.Edged.TailoredKubeletConfig.AllowedUnsafeSysctls = []string{"not a sysctl"}
	for _, c := range []struct {
		name string
		cfg  *v1alpha2.EdgeCore
		want string
	}{
		{"good", &good, ""}, {"no server", &noServer, "link to the cloud: modules.edgeHub.websocket.server"},
		{"no sysctl", &noSysctl, "allowedUnsafeSysctls"},
	} {
		if err := reload.Apply(c.cfg); fmt.Sprint(err) != "<nil>" && c.want == "" ||
			c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := NewReloader(started, nil, nil).Apply(&noSysctl); err != nil {
		t.Errorf("no part has something against it: %v", err)
	}
}

// parts note what a Reloader hands them; the link refuses a section with refuse.
type parts struct {
	settings []options.Settings
	sections []v1alpha2.EdgeHub
	refuse   error
}

func (p *parts) Reload(s options.Settings) { p.settings = append(p.settings, s) }
func (p *parts) Configure(section v1alpha2.EdgeHub) error {
	p.sections = append(p.sections, section)
	return p.refuse
}

// TestReloaderKeepsTheLink: the link is configured when its keys change, and again after it has refused them. Pods keep
// their settings while it refuses.
func TestReloaderKeepsTheLink(t *testing.T) {
	started := v1alpha2.Default()
	p := &parts{}
	r := NewReloader(started, p, p)
	next := *started
	next.Modules.Edged.TailoredKubeletConfig.ClusterDomain = "other.local"
	slower := next
	slower.Modules.EdgeHub.Heartbeat = 17
	for _, step := range []struct {
		what               string
		cfg                *v1alpha2.EdgeCore
		refuse             error
		err                string
		sections, settings int // how many the parts have been handed
	}{
		{"other pods", &next, nil, "", 0, 1},
		{"refused", &slower, errors.New("no"), "link to the cloud: no", 1, 1},
		{"accepted", &slower, nil, "", 2, 2},
		{"the same", &slower, nil, "", 2, 3},
		{"as at the start", started, nil, "", 3, 4},
	} {
		p.refuse = step.refuse
		err := r.Apply(step.cfg)
		if (err == nil) != (step.err == "") || err != nil && err.Error() != step.err {
			t.Errorf("%s: Apply = %v, want %q", step.what, err, step.err)
		}
		if len(p.sections) != step.sections || len(p.settings) != step.settings {
			t.Errorf("%s: %d sections and %d settings so far, want %d and %d", step.what, len(p.sections),
				len(p.settings),
				step.sections, step.settings)
		}
	}
	if got := p.settings[0].DNS.ClusterDomain; got != "other.local" {
		t.Errorf("cluster domain = %q, want other.local", got)
	}
	if got := p.sections[1].Heartbeat; got != 17 {
		t.Errorf("heartbeat = %d, want 17", got)
	}
}
