// Package page looks at the status page of a device with a browser, and changes the configuration of a device under its
// pods. It runs a real containerd, a real edgecore, and Debian's headless Chromium.
package page

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
)

// patience bounds every wait: these machines are shared.
const patience = 2 * time.Minute

// device is a containerd with an edgecore on it. All tests share one: each has pods of its own.
type device struct {
	*agent.Agent
	ctrd *containerd.Instance
}

func startDevice(t *testing.T) *device {
	t.Helper()
	ctrd := testenv.StartContainerd(t, testenv.Options{})
	return &device{Agent: testenv.StartAgent(t, ctrd, agent.Options{NodeName: "gate-7"}), ctrd: ctrd}
}

const forever = "echo up; trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

// pod is a manifest of a container that runs a script.
func pod(name, script, more string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 1\n%s"+
		"  containers:\n  - {name: main, image: edgecore.local/demo:1, command: [sh, -c, %q]}\n", name, more, script)
}

func (d *device) write(t *testing.T, name, text string) {
	t.Helper()
	if err := d.WriteManifest(name, text); err != nil {
		t.Fatal(err)
	}
}

// until waits for the pods to be as a check wants them.
func (d *device) until(t *testing.T, check func(map[string]*v1.Pod) error) map[string]*v1.Pod {
	t.Helper()
	var last map[string]*v1.Pod
	testenv.Poll(t, patience, func() error {
		pods, err := d.Pods(t.Context())
		if err != nil {
			return err
		}
		last = pods
		return check(pods)
	})
	return last
}

func ready(p *v1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

func TestDevice(t *testing.T) {
	d := startDevice(t)
	t.Run("page", d.page)
	t.Run("reload", d.reload)
}

// page: the page says what is well and what is not, on a phone, a small phone and a desk, by day and by night; it asks for
// nothing else, and a pod's words stay words.
func (d *device) page(t *testing.T) {
	const injected = `<img src=x onerror=alert(1)>`
	d.write(t, "good.yaml", pod("good", forever, ""))
	d.write(t, "crash.yaml", pod("crash", "printf '%s' '"+injected+"' > /dev/termination-log; exit 3", "  restartPolicy: Never\n"))
	d.write(t, "absent.yaml", strings.Replace(pod("absent", forever, ""), "demo:1", "none:1", 1))
	d.write(t, "bad.yaml", "kind: Pod\nspec: {containers: 7}\n")
	d.until(t, func(pods map[string]*v1.Pod) error {
		crash, absent := pods["crash"], pods["absent"]
		if !ready(pods["good"]) || crash == nil || absent == nil || len(crash.Status.ContainerStatuses) == 0 || crash.Status.ContainerStatuses[0].State.Terminated == nil ||
			len(absent.Status.ContainerStatuses) == 0 || absent.Status.ContainerStatuses[0].State.Waiting == nil || absent.Status.ContainerStatuses[0].State.Waiting.Message == "" {
			return fmt.Errorf("not there yet: %v", pods)
		}
		return nil
	})
	b := startBrowser(t)
	url := fmt.Sprintf("http://127.0.0.1:%d/", d.Port)
	for _, s := range []screen{
		{"phone", 390, 844, true, false}, {"phone-dark", 390, 844, true, true}, {"small-phone", 320, 568, true, false}, {"desk", 1280, 900, false, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			b.t = t
			p := b.open(url, s)
			p.shoot(filepath.Join(t.ArtifactDir(), s.name+".png"))
			for expression, want := range map[string]string{
				"document.title":          "gate-7 · edgecore",
				"document.scripts.length": "0",
				"document.images.length":  "0",
				// Nothing is wider than the screen.
				"document.documentElement.scrollWidth <= " + fmt.Sprint(s.width): "true",
				"document.getElementById('state').className":                     "state bad",
				"[...document.querySelectorAll('#pods b')].pop().textContent":    "good-gate-7",
				"document.querySelectorAll('#pods li').length":                   "3",
				"getComputedStyle(document.body).backgroundColor":                map[bool]string{false: "rgb(244, 245, 247)", true: "rgb(15, 19, 24)"}[s.dark],
				faint: "",
				small: "",
			} {
				if got := p.text(expression); got != want {
					t.Errorf("%s: %q, want %q", expression, got, want)
				}
			}
			text := p.text("document.body.innerText")
			for _, want := range []string{
				"1 thing needs attention", "A static pod manifest is of no use", "bad.yaml", "Correct the file", "This device has joined no cloud",
				"1 of 3 healthy", "absent-gate-7", "crash-gate-7", "exit code 3: " + injected, "LAST ERRORS", "edgecore ", "containerd", "UTC",
			} {
				if !strings.Contains(text, want) {
					t.Errorf("no %q on the page", want)
				}
			}
			// What takes the agent long to find out is left out of a page, and is there another time.
			testenv.Poll(t, time.Minute, func() error {
				p := b.open(url, s)
				text := p.text("document.body.innerText")
				for _, want := range []string{"MEMORY", "DISK", " GiB"} {
					if !strings.Contains(text, want) {
						return fmt.Errorf("no %q on the page:\n%s", want, text)
					}
				}
				return nil
			})
			if t.Failed() {
				t.Logf("the page:\n%s", text)
			}
		})
	}
	b.t = t
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, asked := range b.asked {
		if asked != url && !strings.HasPrefix(asked, "data:") {
			t.Errorf("the page asked for %s", asked)
		}
	}
	if len(b.asked) == 0 || len(b.complaints) > 0 {
		t.Errorf("asked for %v; the browser says %v", b.asked, b.complaints)
	}
	for _, name := range []string{"crash.yaml", "absent.yaml", "bad.yaml"} {
		if err := d.RemoveManifest(name); err != nil {
			t.Error(err)
		}
	}
}

// faint names texts whose colour is too near to what is behind them, as WCAG's AA has it; small names those that are too small
// for a phone.
const (
	faint = `(() => {
		const lum = c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
		const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c != 'rgba(0, 0, 0, 0)') return c } return 'rgb(255, 255, 255)' };
		const bad = [];
		for (const e of document.body.querySelectorAll('*')) {
			if (![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim())) continue;
			const a = lum(getComputedStyle(e).color), b = lum(behind(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
			if (ratio < 4.5) bad.push(e.textContent.slice(0, 40) + ' ' + ratio.toFixed(1));
		}
		return bad.join('; ') })()`
	small = `[...document.body.querySelectorAll('*')].filter(e => e.textContent.trim() && parseFloat(getComputedStyle(e).fontSize) < 13).map(e => e.textContent.slice(0, 40)).join('; ')`
)

// reload: while pods run, the file is changed and SIGHUP is sent; the pods that run stay as they are, new ones get what is
// new, and what cannot change is named.
func (d *device) reload(t *testing.T) {
	original, err := os.ReadFile(d.Config())
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, "before.yaml", pod("before", forever, "  dnsPolicy: ClusterFirst\n"))
	before := d.until(t, func(pods map[string]*v1.Pod) error {
		if !ready(pods["before"]) || !ready(pods["good"]) || len(pods) != 2 {
			return fmt.Errorf("not there yet: %v", pods)
		}
		return nil
	})
	pid := d.PID()
	const added = "tailoredKubeletConfig:\n      clusterDNS: [192.0.2.53]\n      clusterDomain: later.example\n      maxPods: 77\n      eventBurst: 33\n"
	changed := strings.Replace(string(original), "tailoredKubeletConfig:\n", added, 1)
	d.configure(t, changed)
	d.condition(t, "RestartNeeded", "maxPods: 110 -> 77")
	d.write(t, "after.yaml", pod("after", "cat /etc/resolv.conf; "+forever, "  dnsPolicy: ClusterFirst\n"))
	after := d.until(t, func(pods map[string]*v1.Pod) error {
		if !ready(pods["after"]) {
			return fmt.Errorf("not there yet: %v", pods["after"])
		}
		return nil
	})
	testenv.Poll(t, patience, func() error {
		out, err := d.Run(t.Context(), "logs", after["after"].Name)
		if err != nil || !strings.Contains(out, "nameserver 192.0.2.53") || !strings.Contains(out, "svc.later.example") {
			return fmt.Errorf("a pod that is started now has another resolver: %v %s", err, out)
		}
		return nil
	})
	d.configure(t, strings.Replace(changed, "maxPods: 77", "maxPods: many", 1))
	d.condition(t, "ConfigurationBad", "maxPods")
	d.configure(t, string(original))
	d.condition(t, "", "")
	now := d.until(t, func(map[string]*v1.Pod) error { return nil })
	for _, name := range []string{"good", "before"} {
		was, is := before[name].Status.ContainerStatuses[0], now[name].Status.ContainerStatuses[0]
		if was.ContainerID != is.ContainerID || is.RestartCount != was.RestartCount {
			t.Errorf("pod %s was restarted: %+v, %+v", name, was, is)
		}
	}
	if d.PID() != pid {
		t.Error("the agent is another one")
	}
	log, err := os.ReadFile(d.Log())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`key="modules.edged.tailoredKubeletConfig.clusterDNS" from="unset" to="[\"192.0.2.53\"]" takesEffect="now"`,
		`key="modules.edged.tailoredKubeletConfig.maxPods" from="110" to="77" takesEffect="when edgecore is restarted"`,
	} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
}

// configure replaces the configuration file, as editors and package managers do.
func (d *device) configure(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(d.Config()+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.Config()+".new", d.Config()); err != nil {
		t.Fatal(err)
	}
}

// condition waits until the status page shows a condition with a detail, or none of the configuration.
func (d *device) condition(t *testing.T, code, detail string) {
	t.Helper()
	testenv.Poll(t, patience, func() error {
		status, err := d.Get(t.Context(), "/status")
		if err != nil {
			return err
		}
		if code == "" {
			if strings.Contains(status, "RestartNeeded") || strings.Contains(status, "ConfigurationBad") {
				return fmt.Errorf("want no condition of the configuration: %s", status)
			}
			return nil
		}
		if !strings.Contains(status, `"code":"`+code) || !strings.Contains(status, strings.ReplaceAll(detail, ">", `\u003e`)) {
			return fmt.Errorf("want %s with %q: %s", code, detail, status)
		}
		return nil
	})
}
