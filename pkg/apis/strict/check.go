package strict

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// UnixScheme begins the URL of a unix socket.
const UnixScheme = "unix://"

// Checker collects problems of values, each with its path, its value, and what is allowed.
type Checker struct {
	// Secrets are those of the Schema.
	Secrets  Secrets
	Problems Problems
}

// Fail records that a value is not allowed, and what would be.
func (c *Checker) Fail(path string, value any, want string) {
	c.Problems = append(c.Problems, Problem{Path: path, Text: notAllowed(path, value, want, c.Secrets)})
}

// OneOf wants one of the texts.
func (c *Checker) OneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.Fail(path, value, alternatives(allowed))
	}
}

func alternatives(allowed []string) string {
	if len(allowed) == 1 {
		return allowed[0]
	}
	return "one of " + strings.Join(allowed, ", ")
}

// AtLeast wants a number that is not below the least.
func (c *Checker) AtLeast(path string, value, least int64) {
	if value < least {
		c.Fail(path, value, fmt.Sprintf("%d or more", least))
	}
}

// Within wants a number from least to most.
func (c *Checker) Within(path string, value, least, most int64) {
	if value < least || value > most {
		c.Fail(path, value, fmt.Sprintf("%d to %d", least, most))
	}
}

// Positive wants a duration above 0.
func (c *Checker) Positive(path string, d time.Duration) {
	if d <= 0 {
		c.Fail(path, d.String(), "a duration above 0, such as 10s")
	}
}

// NotNegative wants a duration that is not below 0.
func (c *Checker) NotNegative(path string, d time.Duration) {
	if d < 0 {
		c.Fail(path, d.String(), "a duration of 0s or more")
	}
}

// Absolute wants an absolute path.
func (c *Checker) Absolute(path, value string) {
	if !filepath.IsAbs(value) {
		c.Fail(path, value, "an absolute path")
	}
}

// AbsoluteOrNone wants an absolute path, or nothing.
func (c *Checker) AbsoluteOrNone(path, value string) {
	if value != "" {
		c.Absolute(path, value)
	}
}

// Socket wants the URL of a unix socket, such as the example.
func (c *Checker) Socket(path, value, example string) {
	rest, ok := strings.CutPrefix(value, UnixScheme)
	if !ok || !filepath.IsAbs(rest) {
		c.Fail(path, value, "a unix socket, such as "+example)
	}
}

// Address wants an IP address.
func (c *Checker) Address(path, value string) {
	if _, err := netip.ParseAddr(value); err != nil {
		c.Fail(path, value, "an IP address, such as 127.0.0.1")
	}
}

// HostPort checks a server's address.
func (c *Checker) HostPort(path, value string) {
	host, port, err := net.SplitHostPort(value)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || host == "" {
		c.Fail(path, value, "an address and a port, such as 192.0.2.1:10000")
	}
}
