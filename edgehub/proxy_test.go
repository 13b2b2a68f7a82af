package edgehub

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

// TestProxyRefuses: a condition says that a proxy refuses the link, with the status and the remedy. The proxy need not
// send a text with the status: many do not.
func TestProxyRefuses(t *testing.T) {
	for answer, want := range map[string]string{
		"403 Forbidden":                     "(HTTP 403 Forbidden): have the proxy allow CONNECT",
		"407 Proxy Authentication Required": "(HTTP 407 Proxy Authentication Required): put a user name and password",
		"502 Bad Gateway":                   "(HTTP 502 Bad Gateway): check that the proxy can reach",
		"403":                               "(HTTP 403 Forbidden): have the proxy allow CONNECT",
	} {
		synctest.Test(t, func(t *testing.T) {
			l := wiretest.NewMemory(t)
			go func() { // until l is closed
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
						_, _ = io.WriteString(c, "HTTP/1.1 "+answer+"\r\n\r\n")
					}
					_ = c.Close()
				}
			}()
			conditions := &health.Registry{}
			startEdge(t, wiretest.NewCA(t), "cloud.example:10000", with{
				dial: l.Dial,
				options: func(o *Options) {
					o.Health = conditions
					o.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy.example:3128") }
				},
			})
			time.Sleep(11 * time.Second)
			list := conditions.Snapshot()
			if len(list) != 1 || list[0].Code != health.CloudUnreachable ||
				!strings.HasPrefix(list[0].Detail, "the proxy proxy.example:3128 does not connect to ") ||
				!strings.Contains(list[0].Detail, want) {
				t.Errorf("%q: conditions = %+v, want %s with %q", answer, list, health.CloudUnreachable, want)
			}
		})
	}
}

// TestDeadProxy: a condition says that it is the proxy that does not answer, and where its address comes from.
func TestDeadProxy(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"nobody listens": {
			&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
			"nothing listens at the proxy proxy.example:3128; see HTTPS_PROXY and NO_PROXY of the service",
		},
		"no such name": {
			&net.DNSError{Err: "no such host", Name: "proxy.example", IsNotFound: true},
			"the name of the proxy proxy.example:3128 is not resolved; see HTTPS_PROXY and NO_PROXY of the service",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			conditions := &health.Registry{}
			startEdge(t, wiretest.NewCA(t), "cloud.example:10000", with{
				dial: func(context.Context, string, string) (net.Conn, error) { return nil, row.err },
				options: func(o *Options) {
					o.Health = conditions
					o.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy.example:3128") }
				},
			})
			time.Sleep(11 * time.Second)
			list := conditions.Snapshot()
			if len(list) != 1 || !strings.HasPrefix(list[0].Detail, row.want) {
				t.Errorf("%s: conditions = %+v, want %q", name, list, row.want)
			}
		})
	}
}
