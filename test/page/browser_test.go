package page

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// program is Debian's Chromium without a window; hack/setup test installs it.
const program = "chromium-headless-shell"

// browser is a Chromium of a test's own, driven by the DevTools protocol.
type browser struct {
	t    *testing.T
	conn *websocket.Conn

	mu      sync.Mutex
	last    int
	answers map[int]chan answer
	// asked are the addresses that pages asked for, complaints what pages had to say.
	asked, complaints []string
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// startBrowser starts one; it ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v, want the browser: install the Debian package %s (hack/setup test does)", err, program)
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	proc, err := daemon.Start(log, append(os.Environ(), "HOME="+dir), path, "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage",
		"--remote-debugging-port=0", "--user-data-dir="+dir, "about:blank")
	env.Must(t, err)
	t.Cleanup(func() {
		// What it has started would write into its folder while that is removed.
		if err := proc.EndSession(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var port, socket string
	wait.Until(t, "the browser to listen", func() error {
		if !proc.Running() {
			return daemon.Fatal(fmt.Errorf("the browser has ended: %s", daemon.Tail(log, 20)))
		}
		data, err := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		if err != nil {
			return err
		}
		port, socket, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
		if socket == "" {
			return errors.New("the browser has not written its address")
		}
		return nil
	})
	conn, _, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://127.0.0.1:"+port+socket, nil)
	env.Must(t, err)
	b := &browser{t: t, conn: conn, answers: map[int]chan answer{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read()
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-read
	})
	return b
}

// read takes what the browser says until the connection ends.
func (b *browser) read() {
	for {
		var msg struct {
			ID     int
			Method string
			Params struct {
				Request   struct{ URL string }
				Entry     struct{ Text string }
				Exception json.RawMessage
				Args      json.RawMessage
			}
			answer
		}
		if err := b.conn.ReadJSON(&msg); err != nil {
			return
		}
		b.mu.Lock()
		switch msg.Method {
		case "Network.requestWillBeSent":
			b.asked = append(b.asked, msg.Params.Request.URL)
		case "Log.entryAdded":
			b.complaints = append(b.complaints, msg.Params.Entry.Text)
		case "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
			b.complaints = append(b.complaints, msg.Method+string(msg.Params.Args))
		}
		if ch := b.answers[msg.ID]; ch != nil {
			delete(b.answers, msg.ID)
			ch <- msg.answer
		}
		b.mu.Unlock()
	}
}

// call asks the browser for something, in a page where session is not empty.
func (b *browser) call(session, method string, params map[string]any, into any) {
	b.t.Helper()
	env.Must(b.t, b.try(session, method, params, into))
}

// try is call for what the browser may refuse.
func (b *browser) try(session, method string, params map[string]any, into any) error {
	b.mu.Lock()
	b.last++
	ch := make(chan answer, 1)
	b.answers[b.last] = ch
	msg := map[string]any{"id": b.last, "method": method, "params": params}
	if session != "" {
		msg["sessionId"] = session
	}
	err := b.conn.WriteJSON(msg)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	a := wait.Receive(b.t, "the browser's answer to "+method, ch)
	if a.Error != nil {
		return fmt.Errorf("%s: %s", method, a.Error.Message)
	}
	if into != nil {
		if err := json.Unmarshal(a.Result, into); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
	}
	return nil
}

// screen is what a page is shown on.
type screen struct {
	name          string
	width, height int
	phone, dark   bool
}

// tab is a page in the browser.
type tab struct {
	*browser
	session string
}

// open shows an address on a screen, and waits until it is all there.
func (b *browser) open(url string, s screen) *tab {
	b.t.Helper()
	var target struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	tab := &tab{b, attached.SessionID}
	for _, domain := range []string{"Network", "Log", "Runtime", "Page"} {
		b.call(tab.session, domain+".enable", nil, nil)
	}
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	b.call(tab.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": s.width, "height": s.height,
		"deviceScaleFactor": 2, "mobile": s.phone}, nil)
	b.call(tab.session, "Emulation.setEmulatedMedia", map[string]any{
		"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}},
	}, nil)
	b.call(tab.session, "Page.navigate", map[string]any{"url": url}, nil)
	wait.Until(b.t, "the page to be there", func() error {
		if got := tab.text("location.href"); got != url {
			return fmt.Errorf("the address is %s, want %s", got, url)
		}
		return nil
	})
	return tab
}

// text is what an expression comes to in the page once that is all there: it loads itself again each half minute.
func (p *tab) text(expression string) string {
	p.t.Helper()
	var result struct {
		Result           struct{ Value []any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	whole := "document.readyState == 'complete' ? [" + expression + "] : []"
	wait.Until(p.t, "the page to load", func() error {
		err := p.try(p.session, "Runtime.evaluate", map[string]any{"expression": whole, "returnByValue": true}, &result)
		if err == nil && result.ExceptionDetails == nil && len(result.Result.Value) == 0 {
			err = errors.New("the page does not load")
		}
		return err
	})
	if result.ExceptionDetails != nil {
		p.t.Fatalf("%s: exception %s, want none", expression, result.ExceptionDetails.Exception.Description)
	}
	return fmt.Sprint(result.Result.Value[0])
}

// shoot keeps a picture of the whole page in a file.
func (p *tab) shoot(file string) {
	p.t.Helper()
	var shot struct{ Data string }
	p.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(file, data, 0o644)
	}
	env.Must(p.t, err)
}
