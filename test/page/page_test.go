// Package page looks at the status page of a device with a browser, and changes the configuration of a device under its
// pods. It runs a real containerd, a real edgecore, and Debian's headless Chromium.
package page

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

const forever = "echo up; " + env.Forever

// device is a node that all tests share: each has pods of its own.
type device struct{ *env.Node }

func TestDevice(t *testing.T) {
	d := device{env.StartNode(t, built, env.NodeOptions{Agent: agent.Options{NodeName: "gate-7"}})}
	t.Run("page", func(t *testing.T) { device{d.With(t)}.page(t) })
	t.Run("reload", func(t *testing.T) { device{d.With(t)}.reload(t) })
}

// page: the page says what is well and what is not, on a phone, a small phone and a desk, by day and by night; it asks
// for nothing else, and a pod's words stay words.
func (d device) page(t *testing.T) {
	const injected = `<img src=x onerror=alert(1)>`
	d.Manifest("good", env.Pod("good", forever))
	d.Manifest("crash", env.Pod("crash", "printf '%s' '"+injected+"' > /dev/termination-log; exit 3",
		"  restartPolicy: Never"))
	d.Manifest("absent", strings.Replace(env.Pod("absent", forever), "demo:1", "none:1", 1))
	d.Manifest("bad", "kind: Pod\nspec: {containers: 7}\n")
	d.Running("good")
	d.Until("a pod to have ended, and one to miss its image", func(pods map[string]*v1.Pod) error {
		if c := container(pods["crash"]); c == nil || c.State.Terminated == nil {
			return fmt.Errorf("crash is %+v, want it terminated", c)
		}
		if c := container(pods["absent"]); c == nil || c.State.Waiting == nil || c.State.Waiting.Message == "" {
			return fmt.Errorf("absent is %+v, want it waiting with a message", c)
		}
		return nil
	})
	b := startBrowser(t)
	url := fmt.Sprintf("http://127.0.0.1:%d/", d.Port)
	for _, s := range []screen{
		{"phone", 390, 844, true, false}, {"phone-dark", 390, 844, true, true}, {"small-phone", 320, 568, true, false},
		{"desk", 1280, 900, false, false},
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
				"getComputedStyle(document.body).backgroundColor": map[bool]string{
					false: "rgb(244, 245, 247)", true: "rgb(15, 19, 24)",
				}[s.dark],
				faint: "",
				small: "",
			} {
				if got := p.text(expression); got != want {
					t.Errorf("%s: %q, want %q", expression, got, want)
				}
			}
			text := p.text("document.body.innerText")
			for _, want := range []string{
				"1 thing needs attention", "A static pod manifest is invalid", "bad.yaml", "Correct the file",
				"This device has not joined a cloud",
				"1 of 3 healthy", "absent-gate-7", "crash-gate-7", "exit code 3: " + injected, "LAST ERRORS",
				"edgecore ", "containerd", "UTC",
			} {
				if !strings.Contains(text, want) {
					t.Errorf("no %q on the page:\n%s", want, text)
				}
			}
			// What takes the agent long to find out is left out of a page, and is there another time.
			wait.Until(t, "the page to show memory and disk", func() error {
				p := b.open(url, s)
				text := p.text("document.body.innerText")
				for _, want := range []string{"MEMORY", "DISK", " GiB"} {
					if !strings.Contains(text, want) {
						return fmt.Errorf("no %q on the page:\n%s", want, text)
					}
				}
				return nil
			})
		})
	}
	b.t = t
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, asked := range b.asked {
		if asked != url && !strings.HasPrefix(asked, "data:") {
			t.Errorf("the page asked for %s, want nothing but itself", asked)
		}
	}
	if len(b.asked) == 0 || len(b.complaints) > 0 {
		t.Errorf("asked for %v, want the page; the browser complains of %v, want nothing", b.asked, b.complaints)
	}
	for _, name := range []string{"crash.yaml", "absent.yaml", "bad.yaml"} {
		d.Remove(name)
	}
}

// container returns the status of a pod's first container, nil if there is none.
func container(p *v1.Pod) *v1.ContainerStatus {
	if p == nil || len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return &p.Status.ContainerStatuses[0]
}

// faint names texts whose colour is too near to what is behind them, as WCAG's AA has it; small names those that are
// too small for a phone.
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

// reload: while pods run, the file is changed and SIGHUP is sent; the pods that run stay as they are, new ones get what
// is new, and what cannot change is named.
func (d device) reload(t *testing.T) {
	original, err := os.ReadFile(d.Config())
	env.Must(t, err)
	d.Manifest("good", env.Pod("good", forever)) // as it may be already
	d.Manifest("before", env.Pod("before", forever, "  dnsPolicy: ClusterFirst"))
	d.Gone("crash", "absent")
	before := d.Running("good", "before")
	pid := d.PID()
	const added = "tailoredKubeletConfig:\n      clusterDNS: [192.0.2.53]\n      clusterDomain: later.example\n      " +
		"maxPods: 77\n      eventBurst: 33\n"
	changed := strings.Replace(string(original), "tailoredKubeletConfig:\n", added, 1)
	d.configure(t, changed)
	d.condition(t, "RestartNeeded", "maxPods: 110 -> 77")
	d.Manifest("after", env.Pod("after", "cat /etc/resolv.conf; "+forever, "  dnsPolicy: ClusterFirst"))
	after := d.Running("after")
	wait.Until(t, "a new pod to have the new resolver", func() error {
		out, err := d.Run(t.Context(), "logs", after["after"].Name)
		if err != nil || !strings.Contains(out, "nameserver 192.0.2.53") ||
			!strings.Contains(out, "svc.later.example") {
			return fmt.Errorf("%w: its resolver is %s, want 192.0.2.53 and later.example", err, out)
		}
		return nil
	})
	d.configure(t, strings.Replace(changed, "maxPods: 77", "maxPods: many", 1))
	d.condition(t, "ConfigurationBad", "maxPods")
	d.configure(t, string(original))
	d.condition(t, "", "")
	now := d.Running("good", "before")
	for _, name := range []string{"good", "before"} {
		was, is := before[name].Status.ContainerStatuses[0], now[name].Status.ContainerStatuses[0]
		if was.ContainerID != is.ContainerID || is.RestartCount != was.RestartCount {
			t.Errorf("container of pod %s = %+v, want %+v as before", name, is, was)
		}
	}
	if got := d.PID(); got != pid {
		t.Errorf("pid of the agent = %d, want %d as before", got, pid)
	}
	log, err := os.ReadFile(d.Log())
	env.Must(t, err)
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
func (d device) configure(t *testing.T, text string) {
	t.Helper()
	env.Must(t, os.WriteFile(d.Config()+".new", []byte(text), 0o644))
	env.Must(t, os.Rename(d.Config()+".new", d.Config()))
}

// condition waits until the status page shows a condition with a detail, or none of the configuration.
func (d device) condition(t *testing.T, code, detail string) {
	t.Helper()
	wait.Until(t, "the condition "+code, func() error {
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
		if !strings.Contains(status, `"code":"`+code) ||
			!strings.Contains(status, strings.ReplaceAll(detail, ">", `\u003e`)) {
			return fmt.Errorf("want %s with %q: %s", code, detail, status)
		}
		return nil
	})
}
